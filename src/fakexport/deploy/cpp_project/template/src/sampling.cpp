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

// Returns a mask of the tokens. Image placeholders outside of the vocabulary are skipped.
at::Tensor marked(const at::Tensor& scores, const Tokens& tokens) {
  Tokens known;
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < scores.size(-1)) known.push_back(token);
  }
  return at::zeros_like(scores, at::kBool).index_fill(-1, at::tensor(known, at::kLong), true);
}

double number(const json::Value& value) {
  return value.is_integer() ? static_cast<double>(value.integer()) : value.real();
}

std::optional<double> optional_number(const json::Value& value) {
  return value.is_null() ? std::nullopt : std::optional(number(value));
}

at::Tensor only(const at::Tensor& scores, std::int64_t token) {
  if (token < 0 || token >= scores.size(-1)) {
    throw Fault("the generation config forces the token " + std::to_string(token) + ", which does not exist");
  }
  at::Tensor forced = at::full_like(scores, never);
  forced.select(-1, token).fill_(0);
  return forced;
}

// Keeps only the smallest set of most likely tokens whose probabilities add up to `top_p`: at least one.
at::Tensor of_probability(const at::Tensor& scores, double top_p) {
  const auto [in_order, indices] = scores.sort(-1, /*descending=*/true);
  at::Tensor before = in_order.softmax(-1).cumsum(-1).roll({1}, {-1});
  before.select(-1, 0).fill_(-1);  // Smaller than any `top_p`, which may be rounded to 0 in float32.
  const at::Tensor is_left_out = at::zeros_like(scores, at::kBool).scatter(-1, indices, before >= top_p);
  return scores.masked_fill(is_left_out, never);
}

}  // namespace

std::optional<std::int64_t> optional_integer(const json::Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.integer());
}

Sampling Sampling::completed(const Defaults& defaults) const {
  if (is_greedy()) return *this;
  Sampling found = *this;
  if (!temperature) found.temperature = defaults.drawing.temperature;
  if (!top_k) found.top_k = defaults.drawing.top_k;
  if (!top_p) found.top_p = defaults.drawing.top_p;
  return found;
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
  for (const json::Value& word : value.at("bad_words").array()) {
    found.bad_words.push_back(integers(word));
    if (found.bad_words.back().size() < 2) throw Fault("one of the bad_words has fewer than two tokens");
  }
  found.repetition_penalty = number(value.at("repetition_penalty"));
  found.no_repeat_ngram_size = value.at("no_repeat_ngram_size").integer();
  found.least = value.at("least").integer();
  found.least_new = value.at("least_new").integer();
  found.is_drawn = value.at("is_drawn").boolean();
  found.drawing.temperature = optional_number(value.at("temperature"));
  found.drawing.top_k = optional_integer(value.at("top_k"));
  found.drawing.top_p = optional_number(value.at("top_p"));
  for (const json::Value& name : value.at("not_applied").array()) found.not_applied.push_back(name.text());
  found.own_generate = value.at("own_generate").text();
  return found;
}

at::Tensor Defaults::restricted(at::Tensor scores, const Place& place) const {
  if (scores.isnan().any().item<bool>()) {
    throw Fault("the scores of the tokens are NaN: check that the weights belong to this model");
  }
  if (place.generated == 0 && place.is_after_one && forced_first) return only(scores, *forced_first);
  if (place.is_last && forced_last) return only(scores, *forced_last);
  if (repetition_penalty != 1) {
    const at::Tensor less = at::where(scores < 0, scores * repetition_penalty, scores / repetition_penalty);
    scores = at::where(marked(scores, place.text), less, scores);
  }
  scores = scores.masked_fill(marked(scores, forbidden(place)), never);
  if ((scores == never).all().item<bool>()) {
    throw Fault("the generation config of the model forbids every token");
  }
  return scores;
}

Tokens Defaults::forbidden(const Place& place) const {
  const Tokens& text = place.text;
  const auto length = static_cast<std::int64_t>(text.size());
  Tokens found = suppressed;
  const auto add = [&](const Tokens& tokens) { found.insert(found.end(), tokens.begin(), tokens.end()); };
  if (place.generated == 0) add(suppressed_first);
  if (place.generated < least_new || length < least) add(place.eos);
  for (const Tokens& word : bad_words) {
    // Forbid the last token of the word if the text ends with all previous tokens of the word.
    if (word.size() <= text.size() + 1 && std::equal(word.rbegin() + 1, word.rend(), text.rbegin())) {
      found.push_back(word.back());
    }
  }
  const std::int64_t size = no_repeat_ngram_size;
  for (std::int64_t i = 0; size > 0 && i + size <= length; ++i) {
    // Forbid the token that followed the last `size - 1` tokens of the text when they occurred before.
    if (std::equal(text.begin() + i, text.begin() + i + size - 1, text.end() - (size - 1))) {
      found.push_back(text[i + size - 1]);
    }
  }
  return found;
}

}  // namespace runner
