#include "sampling.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

#include "fault.hpp"

namespace runner {
namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

Tokens integers(const json::Value& value) {
  Tokens found;
  for (const json::Value& token : value.array()) found.push_back(token.integer());
  return found;
}

at::Tensor without(const at::Tensor& scores, const Tokens& tokens) {
  Tokens known;
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < scores.size(-1)) known.push_back(token);
  }
  return known.empty() ? scores : scores.index_fill(-1, at::tensor(known, at::kLong), never);
}

at::Tensor only(const at::Tensor& scores, std::int64_t token) {
  if (token < 0 || token >= scores.size(-1)) {
    throw Fault("the generation config forces the token " + std::to_string(token) + ", which does not exist");
  }
  at::Tensor forced = at::full_like(scores, never);
  forced.select(-1, token).fill_(0);
  return forced;
}

// The fewest tokens whose probabilities add up to `top_p`, and at least one.
at::Tensor of_probability(const at::Tensor& scores, double top_p) {
  const auto [in_order, indices] = scores.sort(-1, /*descending=*/true);
  at::Tensor before = in_order.softmax(-1).cumsum(-1).roll({1}, {-1});
  before.select(-1, 0).fill_(0);
  const at::Tensor is_left_out = at::zeros_like(scores, at::kBool).scatter(-1, indices, before >= top_p);
  return scores.masked_fill(is_left_out, never);
}

}  // namespace

std::optional<std::int64_t> optional_integer(const json::Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.integer());
}

std::int64_t Sampling::chosen(at::Tensor scores, at::Generator& generator) const {
  if (is_greedy()) return scores.argmax(-1).item<std::int64_t>();
  scores = scores / temperature.value_or(1.0);
  if (top_k) {
    const at::Tensor least = std::get<0>(scores.topk(std::min(*top_k, scores.size(-1)))).slice(-1, -1);
    scores = scores.masked_fill(scores < least, never);
  }
  if (top_p) scores = of_probability(scores, *top_p);
  return at::multinomial(scores.softmax(-1), 1, /*replacement=*/false, generator).item<std::int64_t>();
}

Defaults Defaults::of(const json::Value& value) {
  Defaults found;
  found.eos = integers(value.at("eos"));
  found.suppressed = integers(value.at("suppressed"));
  found.suppressed_first = integers(value.at("suppressed_first"));
  found.pad = optional_integer(value.at("pad"));
  found.decoder_start = optional_integer(value.at("decoder_start"));
  found.longest = optional_integer(value.at("longest"));
  found.forced_first = optional_integer(value.at("forced_first"));
  found.forced_last = optional_integer(value.at("forced_last"));
  for (const json::Value& name : value.at("not_applied").array()) found.not_applied.push_back(name.text());
  return found;
}

at::Tensor Defaults::restricted(at::Tensor scores, std::int64_t generated, bool is_last,
                                bool is_after_one) const {
  scores = without(scores, suppressed);
  if (generated == 0) scores = without(scores, suppressed_first);
  if (generated == 0 && is_after_one && forced_first) return only(scores, *forced_first);
  if (is_last && forced_last) return only(scores, *forced_last);
  return scores;
}

}  // namespace runner
