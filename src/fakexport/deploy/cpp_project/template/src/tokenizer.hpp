#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "sampling.hpp"

namespace runner {

// A tokenizer from a `tokenizer.json`, implemented by Hugging Face's `tokenizers` library.
class Tokenizer {
 public:
  // Throws Fault if the library cannot read the file or one of the texts, or if the project was built without
  // the library.
  Tokenizer(const std::filesystem::path& path, const std::vector<std::string>& texts);

  // Converts a text to ids, with the special tokens that the tokenizer adds. The constructor must have
  // checked it.
  Tokens tokens(const std::string& text) const;

  // Converts ids to text, without special tokens. The bytes of an incomplete character become U+FFFD.
  std::string text(const Tokens& tokens) const;

  // Returns whether the next token may change the text up to this token. Decoders combine consecutive tokens
  // of single bytes, `<0x41>`, even if special tokens, which have no text, are in between.
  bool is_open(std::int64_t token) const;

 private:
  std::shared_ptr<void> handle_;
};

}  // namespace runner
