#pragma once

#include <string>

#include "tokenizer.hpp"

namespace runner {

// Prints the text of a growing row of tokens, each character when it is complete.
class TextPrinter {
 public:
  explicit TextPrinter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void print(const Tokens& tokens, bool is_last);

 private:
  const Tokenizer& tokenizer_;
  std::string printed_;
};

}  // namespace runner
