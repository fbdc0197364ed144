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

// A tensor that one call leaves to the next.
struct StateTensor {
  std::string name;
  std::optional<std::string> input;  // None in prefill.
  std::string output;
};

// The part that each input and output of a program has.
struct CallDescription {
  std::string tokens, logits;
  std::optional<std::string> prompt, mask, positions;
  std::optional<std::string> start;  // The place of the first token in a cache that the program keeps.
  std::vector<std::string> kept;     // The constants with that cache, which both programs write into.
  std::vector<StateTensor> state;
  std::optional<std::int64_t> length;      // The one number of tokens that it reads, if it reads no other.
  std::optional<std::int64_t> vocabulary;  // How many tokens there are.
  std::optional<std::int64_t> capacity;    // Tokens that a static cache holds.

  // Whether the prompt goes to an encoder, and the tokens to a decoder next to it.
  bool has_encoder() const { return prompt != tokens; }

  static CallDescription of(const json::Value& value);

  // Throws Fault where the program lacks what is named here, or needs more.
  void check(const Signature& signature, bool is_decode) const;
};

// What `generation.json` says.
struct GenerationDescription {
  CallDescription prefill, decode;
  Defaults defaults;

  static GenerationDescription of(const std::filesystem::path& path);
};

// A program with its signature, which checks each call.
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
  std::unique_ptr<Program> program_;  // It stays where it is: the loader in it cannot be moved.
};

// Prefill reads the prompt, then decode reads one token after another.
class Generator {
 public:
  Generator(Call prefill, Call decode, Defaults defaults)
      : prefill_(std::move(prefill)), decode_(std::move(decode)), defaults_(std::move(defaults)) {}

  const Defaults& defaults() const { return defaults_; }

  // Generates the new tokens of one sequence.
  //
  //   prompt  none for a model that is not given text
  //   others  further inputs of prefill by name
  //   eos     tokens that end the sequence; the one that did is the last of the result
  //   report  gets all new tokens after each of them, and whether the sequence ends there
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
  TensorsByName state_;  // By the names of the state.
  at::Tensor scores_, mask_, positions_;
  Tokens text_;             // All tokens so far, without padding.
  std::int64_t place_ = 0;  // Of the next token.
  bool is_after_one_ = false;
};

}  // namespace runner
