#pragma once

#include <string>

#include "tokenizer.hpp"

namespace runner {

// Prints the text of a growing row of tokens, each character when it is complete.
//
// What a decoder returns for a token depends on those before it, but not on all of them. So each print decodes the
// tokens since the print before the last one; the last print decodes all, and throws Fault if their text is another.
class TextPrinter {
 public:
  explicit TextPrinter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void print(const Tokens& tokens, bool is_last);

 private:
  const Tokenizer& tokenizer_;
  std::string printed_;                      // All that was printed.
  std::string text_;                         // Of the tokens from `start_` to `end_`.
  std::size_t start_ = 0, end_ = 0;          // Where the text of two prints ended.
};

}  // namespace runner
