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

// How to draw tokens; without any of the first three, the most likely one is taken.
struct Sampling {
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::uint64_t seed = 0;

  bool is_greedy() const { return !temperature && !top_k && !top_p; }

  // If tokens are drawn: with the numbers of the generation config where there are none.
  Sampling completed(const Defaults& defaults) const;

  // One token of the scores `[1, vocabulary]`, float32 on the CPU.
  std::int64_t chosen(at::Tensor scores, at::Generator& generator) const;
};

// Where a token is generated.
struct Place {
  const Tokens& text;      // All tokens so far, without padding.
  std::int64_t generated;  // New tokens before this one.
  bool is_last;            // There is room for this token only.
  bool is_after_one;       // The new tokens follow a single one: only then is the first one forced.
  const Tokens& eos;       // Tokens that end the sequence.
};

// What the model's generation config says, as far as it is followed.
struct Defaults {
  Tokens eos, suppressed, suppressed_first;
  std::vector<Tokens> bad_words;  // Of several tokens each.
  std::optional<std::int64_t> pad, decoder_start, longest, forced_first, forced_last;
  double repetition_penalty = 1;
  std::int64_t no_repeat_ngram_size = 0, least = 0, least_new = 0;
  bool is_drawn = false;
  Sampling drawing;
  std::vector<std::string> not_applied;
  std::string own_generate;  // The class whose own `generate` is not followed, if it has one.

  static Defaults of(const json::Value& value);

  // The scores with what is forced or forbidden. Throws Fault where every token is, and for NaN.
  at::Tensor restricted(at::Tensor scores, const Place& place) const;

 private:
  Tokens forbidden(const Place& place) const;
};

// A member that is a number or null.
std::optional<std::int64_t> optional_integer(const json::Value& value);

}  // namespace runner
