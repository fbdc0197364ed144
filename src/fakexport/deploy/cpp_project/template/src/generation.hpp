#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json.hpp"
#include "program.hpp"
#include "sampling.hpp"
#include "tensor.hpp"

namespace runner {

// A tensor that one call passes on to the next call.
struct StateTensor {
  std::string name;
  std::optional<std::string> input;  // None in prefill.
  std::string output;
};

// The roles of a program's inputs and outputs.
struct CallDescription {
  std::string tokens, logits;
  std::optional<std::string> prompt, mask, positions;
  std::optional<std::string> start;  // Input: number of tokens in the static cache before the call.
  std::vector<std::string> kept;     // Constants that hold the static cache, which both programs share.
  std::vector<StateTensor> state;
  std::optional<std::int64_t> length;      // Number of tokens per call, if it is fixed.
  std::optional<std::int64_t> vocabulary;  // Number of tokens in the vocabulary.
  std::optional<std::int64_t> capacity;    // Number of tokens in the static cache.

  // Whether the prompt is the input of an encoder, and the tokens are the input of a decoder.
  bool has_encoder() const { return prompt != tokens; }

  static CallDescription of(const json::Value& value);

  // Throws Fault if the program lacks an input or output named here, or if decode needs further inputs.
  void check(const Signature& signature, bool is_decode) const;
};

// The content of `generation.json`.
struct GenerationDescription {
  CallDescription prefill, decode;
  Defaults defaults;

  static GenerationDescription of(const std::filesystem::path& path);
};

// A program with its signature. Each call is checked against the signature.
class Call {
 public:
  Call(CallDescription description, const std::filesystem::path& package, PackageDescription found,
       TensorsByName weights);

  const CallDescription& description() const { return description_; }
  const Signature& signature() const { return signature_; }

  TensorsByName run(const TensorsByName& inputs);

 private:
  CallDescription description_;
  Signature signature_;
  std::unique_ptr<Program> program_;  // A pointer, because the program's loader cannot be moved.
};

// Generates tokens: prefill reads the prompt, then decode reads one token per call.
class Generator {
 public:
  Generator(Call prefill, Call decode, Defaults defaults)
      : prefill_(std::move(prefill)), decode_(std::move(decode)), defaults_(std::move(defaults)) {}

  const Defaults& defaults() const { return defaults_; }

  // Generates the new tokens of one sequence.
  //
  //   prompt  token ids; none for a model without text input
  //   others  other inputs of prefill by name
  //   eos     tokens that end the sequence; such a token is included in the result
  //   report  called after each new token with all new tokens, and whether the sequence has ended
  void operator()(const std::optional<Tokens>& prompt, const TensorsByName& others, std::int64_t most_new,
                  const Sampling& sampling, at::Generator& generator, const Tokens& eos,
                  const std::function<void(const Tokens&, bool)>& report);

 private:
  void read_prompt(const std::optional<Tokens>& prompt, const TensorsByName& others, std::int64_t most_new);
  TensorsByName prompt_inputs(const Tokens& prompt) const;
  void step(std::int64_t token);
  void keep(const CallDescription& description, TensorsByName outputs);

  Call prefill_, decode_;
  Defaults defaults_;
  TensorsByName state_;  // Tensors by `StateTensor::name`.
  at::Tensor scores_, mask_, positions_;
  Tokens text_;             // All tokens so far, without padding.
  std::int64_t place_ = 0;  // Position of the next token in the static cache.
  bool is_after_one_ = false;
};

}  // namespace runner
