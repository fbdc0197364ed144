#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "sampling.hpp"

namespace runner {

// What a `tokenizer.json` says, read by the `tokenizers` library of Hugging Face.
class Tokenizer {
 public:
  // Throws Fault where the library cannot read the file or one of the texts, or where the project was built
  // without it.
  Tokenizer(const std::filesystem::path& path, const std::vector<std::string>& texts);

  // The ids of a text that was given above, with the special tokens that the tokenizer adds.
  Tokens tokens(const std::string& text) const;

  // The text of ids, without special tokens. The bytes of a character that is not complete are U+FFFD.
  std::string text(const Tokens& tokens) const;

  // Whether the next token may change the text of one that ends here: a decoder reads tokens of single bytes,
  // `<0x41>`, that follow each other as one, and special tokens between them have no text.
  bool is_open(std::int64_t token) const;

 private:
  std::shared_ptr<void> handle_;
};

}  // namespace runner
