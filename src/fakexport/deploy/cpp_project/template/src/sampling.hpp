#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "json.hpp"

namespace runner {

using Tokens = std::vector<std::int64_t>;

// How to draw tokens; without any of the first three, the most likely one is taken.
struct Sampling {
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::uint64_t seed = 0;

  bool is_greedy() const { return !temperature && !top_k && !top_p; }

  // One token of the scores `[1, vocabulary]`, float32 on the CPU.
  std::int64_t chosen(at::Tensor scores, at::Generator& generator) const;
};

// What the model's generation config says, as far as it is followed.
struct Defaults {
  Tokens eos, suppressed, suppressed_first;
  std::optional<std::int64_t> pad, decoder_start, longest, forced_first, forced_last;
  std::vector<std::string> not_applied;

  static Defaults of(const json::Value& value);

  // The scores with what is forced or forbidden after `generated` new tokens.
  //
  //   is_after_one  whether the new tokens begin after a single one: only then is the first one forced
  at::Tensor restricted(at::Tensor scores, std::int64_t generated, bool is_last, bool is_after_one) const;
};

// A member that is a number or null.
std::optional<std::int64_t> optional_integer(const json::Value& value);

}  // namespace runner
