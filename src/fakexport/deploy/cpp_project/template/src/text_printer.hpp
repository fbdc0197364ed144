#pragma once

#include <string>

#include "tokenizer.hpp"

namespace runner {

// Prints the text of tokens while they are generated. A character is printed when it is complete.
//
// The text of a token depends on some of the previous tokens, but not on all of them. Each print therefore
// decodes only the tokens since the second-to-last print. The final print decodes all tokens, and throws
// Fault if their text does not begin with the printed text.
class TextPrinter {
 public:
  explicit TextPrinter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void print(const Tokens& tokens, bool is_last);

 private:
  const Tokenizer& tokenizer_;
  std::string printed_;                      // The text printed so far.
  std::string text_;                         // The text of the tokens from `start_` to `end_`.
  std::size_t start_ = 0, end_ = 0;          // Number of tokens at the last two prints.
};

}  // namespace runner
