#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "json.hpp"

namespace runner {

using Tokens = std::vector<std::int64_t>;

struct Defaults;

// How to choose tokens. If temperature, top_k and top_p are all missing, the most likely token is chosen.
struct Sampling {
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::uint64_t seed = 0;

  bool is_greedy() const { return !temperature && !top_k && !top_p; }

  // If tokens are sampled, returns the settings with missing ones taken from the generation config.
  Sampling completed(const Defaults& defaults) const;

  // Chooses one token. `scores` is `[1, vocabulary]`, float32, on the CPU.
  std::int64_t chosen(at::Tensor scores, at::Generator& generator) const;
};

// The state of a sequence before the next token is chosen.
struct Place {
  const Tokens& text;      // All tokens so far, without padding.
  std::int64_t generated;  // Number of new tokens before this one.
  bool is_last;            // This is the last of the requested tokens.
  bool is_after_one;       // The prompt is a single token. Only then does a forced first token apply.
  const Tokens& eos;       // Tokens that end the sequence.
};

// The settings of the model's generation config that are supported.
struct Defaults {
  Tokens eos, suppressed, suppressed_first;
  std::vector<Tokens> bad_words;  // Forbidden sequences of at least two tokens.
  std::optional<std::int64_t> pad, decoder_start, longest, forced_first, forced_last;
  double repetition_penalty = 1;
  std::int64_t no_repeat_ngram_size = 0, least = 0, least_new = 0;
  bool is_drawn = false;
  Sampling drawing;
  std::vector<std::string> not_applied;
  std::string own_generate;  // The model's class if it has its own `generate`, which is not applied; else "".

  static Defaults of(const json::Value& value);

  // Applies forced and forbidden tokens. Throws Fault if every token is forbidden, or a score is NaN.
  at::Tensor restricted(at::Tensor scores, const Place& place) const;

 private:
  Tokens forbidden(const Place& place) const;
};

// Converts a JSON integer or null.
std::optional<std::int64_t> optional_integer(const json::Value& value);

}  // namespace runner
