#pragma once

#include <cstddef>
#include <cstdint>

// The functions of tokenizers-cpp that `generate` calls.
extern "C" {

using TokenizerHandle = void*;

struct TokenizerEncodeResult {
  int* token_ids;
  std::size_t len;
};

TokenizerHandle tokenizers_new_from_str(const char* json, std::size_t len);
void tokenizers_encode(TokenizerHandle handle, const char* data, std::size_t len, int add_special_token,
                       TokenizerEncodeResult* result);
void tokenizers_free_encode_results(TokenizerEncodeResult* results, std::size_t num_seqs);
void tokenizers_decode(TokenizerHandle handle, const std::uint32_t* data, std::size_t len,
                       int skip_special_token);
void tokenizers_get_decode_str(TokenizerHandle handle, const char** data, std::size_t* len);
void tokenizers_id_to_token(TokenizerHandle handle, std::uint32_t id, const char** data, std::size_t* len);
void tokenizers_free(TokenizerHandle handle);
}
