#include "generation.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fault.hpp"
#include "file.hpp"

namespace runner {
namespace {

constexpr const char* format = "fakexport.generation/2";
constexpr std::int64_t most_bytes = 64 << 20;

std::optional<std::string> optional_text(const json::Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.text());
}

at::Tensor row(const Tokens& tokens) { return at::tensor(tokens, at::kLong).unsqueeze(0); }

const InputTensor* input_of(const Signature& signature, const std::string& name) {
  for (const InputTensor& input : signature.inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

void refuse_absent(const std::string& name, bool is_there) {
  if (!is_there) throw Fault("generation.json names " + in_quotes(name) + ", which the program does not have");
}

// Returns the tokens of a sequence without the padding before them.
Tokens text_of(const at::Tensor& tokens, const at::Tensor& mask) {
  Tokens found;
  for (std::int64_t i = 0; i < tokens.size(1); ++i) {
    const bool is_padding = mask.defined() && found.empty() && mask[0][i].item<std::int64_t>() == 0;
    if (!is_padding) found.push_back(tokens[0][i].item<std::int64_t>());
  }
  return found;
}

std::string number(std::int64_t value) { return std::to_string(value); }

}  // namespace

CallDescription CallDescription::of(const json::Value& value) {
  CallDescription found;
  found.tokens = value.at("tokens").text();
  found.logits = value.at("logits").text();
  found.prompt = optional_text(value.at("prompt"));
  found.mask = optional_text(value.at("mask"));
  found.positions = optional_text(value.at("positions"));
  found.start = optional_text(value.at("start"));
  for (const json::Value& name : value.at("kept").array()) found.kept.push_back(name.text());
  for (const json::Value& tensor : value.at("state").array()) {
    found.state.push_back(
        {tensor.at("name").text(), optional_text(tensor.at("input")), tensor.at("output").text()});
  }
  found.length = optional_integer(value.at("length"));
  found.vocabulary = optional_integer(value.at("vocabulary"));
  found.capacity = optional_integer(value.at("capacity"));
  return found;
}

void CallDescription::check(const Signature& signature, bool is_decode) const {
  std::set<std::string> known;
  for (const auto& name :
       {std::optional(tokens), mask, positions, start, is_decode ? std::nullopt : prompt}) {
    if (name) known.insert(*name);
  }
  for (const StateTensor& tensor : state) {
    if (tensor.input) known.insert(*tensor.input);
  }
  for (const std::string& name : known) refuse_absent(name, input_of(signature, name));
  std::set<std::string> returned;
  for (const OutputLeaf& leaf : signature.outputs) {
    if (leaf.is_tensor) returned.insert(leaf.name);
  }
  refuse_absent(logits, returned.count(logits));
  for (const StateTensor& tensor : state) refuse_absent(tensor.output, returned.count(tensor.output));
  for (const InputTensor& input : signature.inputs) {
    if (is_decode && !known.count(input.name)) {
      throw Fault("generation.json does not describe the input " + in_quotes(input.name) + " of decode");
    }
  }
  if (input_of(signature, tokens)->shape.size() != 2) {
    throw Fault("the input " + in_quotes(tokens) + " is not a sequence of tokens");
  }
}

GenerationDescription GenerationDescription::of(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() > most_bytes) throw Fault(path.string() + " is larger than 64 MiB");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  return within(path.string(), [&] {
    const json::Value value = json::parse(text);
    const std::string& written = value.at("format").text();
    if (written != format) {
      throw Fault("its format is " + in_quotes(written) + ", but this program reads " + in_quotes(format));
    }
    return GenerationDescription{CallDescription::of(value.at("prefill")),
                                 CallDescription::of(value.at("decode")),
                                 Defaults::of(value.at("defaults"))};
  });
}

Call::Call(CallDescription description, const std::filesystem::path& package, PackageDescription found,
           TensorsByName weights)
    : description_(std::move(description)),
      signature_(found.signature),
      program_(std::make_unique<Program>(package, std::move(found), std::move(weights))) {}

TensorsByName Call::run(const TensorsByName& inputs) {
  signature_.check(inputs);
  TensorsByName outputs;
  for (auto& [name, tensor] : program_->run(inputs)) outputs.emplace(name, std::move(tensor));
  return outputs;
}

void Generator::operator()(const std::optional<Tokens>& prompt, const TensorsByName& others,
                           std::int64_t most_new, const Sampling& sampling, at::Generator& generator,
                           const Tokens& eos, const std::function<void(const Tokens&, bool)>& report) {
  read_prompt(prompt, others, most_new);
  const Sampling drawing = sampling.completed(defaults_);
  Tokens found;
  while (true) {
    const auto generated = static_cast<std::int64_t>(found.size());
    const bool is_last = generated + 1 == most_new;
    const Place place{text_, generated, is_last, is_after_one_, eos};
    const std::int64_t token = drawing.chosen(defaults_.restricted(scores_, place), generator);
    found.push_back(token);
    text_.push_back(token);
    const bool is_end = is_last || std::count(eos.begin(), eos.end(), token);
    report(found, is_end);
    if (is_end) return;
    step(token);
  }
}

TensorsByName Generator::prompt_inputs(const Tokens& prompt) const {
  const CallDescription& call = prefill_.description();
  if (prompt.empty()) throw Fault("a prompt has no tokens");
  const auto [least, greatest] = std::minmax_element(prompt.begin(), prompt.end());
  if (*least < 0) throw Fault(number(*least) + " is not a token id: ids are 0 or more");
  if (call.vocabulary && *greatest >= *call.vocabulary) {
    throw Fault("the token " + number(*greatest) + " does not exist: the model has " +
                number(*call.vocabulary) + " tokens, starting at 0");
  }
  // Pad a prompt of one token with masked padding, because most programs require at least two tokens.
  const bool is_fixed = call.length && !call.has_encoder();
  const bool can_pad = call.mask && (call.has_encoder() || (call.positions && !is_fixed));
  Tokens tokens = prompt, mask(prompt.size(), 1), positions(prompt.size());
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
  if (can_pad && tokens.size() == 1) {
    const std::int64_t pad = defaults_.pad.value_or(0);
    if (call.has_encoder()) {
      tokens.push_back(pad);
      mask.push_back(0);
    } else {
      tokens.insert(tokens.begin(), pad);
      mask.insert(mask.begin(), 0);
      positions.insert(positions.begin(), 0);
    }
  }
  TensorsByName inputs{{*call.prompt, row(tokens)}};
  if (call.mask) inputs.emplace(*call.mask, row(mask));
  if (call.positions && !call.has_encoder()) {
    if (input_of(prefill_.signature(), *call.positions)->shape.size() != 2) {
      throw Fault("the program expects " + in_quotes(*call.positions) +
                  " with more than two dimensions, which depend on the images: use `fakexport generate`, "
                  "which accepts them as an input");
    }
    inputs.emplace(*call.positions, row(positions));
  }
  return inputs;
}

void Generator::read_prompt(const std::optional<Tokens>& prompt, const TensorsByName& others,
                            std::int64_t most_new) {
  const CallDescription& call = prefill_.description();
  if (prompt && !call.prompt) throw Fault("the program does not accept a prompt of token ids: remove --prompt-ids");
  if (!prompt && call.prompt) throw Fault("there is no prompt: the program expects " + in_quotes(*call.prompt));
  TensorsByName given = others;
  if (prompt) given.merge(prompt_inputs(*prompt));
  if (given.empty()) throw Fault("there are no inputs");
  if (call.has_encoder() && !given.count(call.tokens)) {
    if (!defaults_.decoder_start) {
      throw Fault("the model's config has no decoder_start_token_id: pass " + in_quotes(call.tokens) +
                  " as an input");
    }
    given.emplace(call.tokens, row({*defaults_.decoder_start}));
  }
  const at::Tensor first = given.at(call.tokens);
  if (first.dim() != 2 || first.size(0) != 1) throw Fault("only one sequence can be generated at a time: pass a batch of 1");
  is_after_one_ = first.size(1) == 1;
  text_ = text_of(first, call.has_encoder() || !call.mask ? at::Tensor() : given[*call.mask]);
  const std::int64_t length = first.size(1) + most_new;
  const std::string together = "the prompt and the new tokens are " + number(length) + " tokens in total";
  if (defaults_.longest && length > *defaults_.longest) {
    throw Fault(together + ", but the model has " + number(*defaults_.longest) + " positions");
  }
  // The last new token needs no cache entry, because no program reads it.
  const auto capacity = decode_.description().capacity;
  if (capacity && length - 1 > *capacity) {
    throw Fault(together + ", but the static cache has room for " + number(*capacity));
  }
  // If prefill reads a fixed number of tokens, decode reads the rest of the prompt.
  const std::int64_t read = call.length.value_or(first.size(1));
  if (first.size(1) < read) {
    throw Fault("the program reads prompts of " + number(read) + " tokens or more, got " +
                number(first.size(1)));
  }
  for (const auto& name : {std::optional(call.tokens), call.positions,
                           call.has_encoder() ? std::nullopt : call.mask}) {
    if (name && given.count(*name)) given[*name] = given[*name].slice(-1, 0, read);
  }
  if (call.start) given.insert_or_assign(*call.start, at::zeros({1}, at::kLong));
  place_ = read;
  mask_ = call.mask && given.count(*call.mask) ? given[*call.mask] : at::Tensor();
  positions_ = call.positions && given.count(*call.positions) ? given[*call.positions].slice(-1, -1)
                                                              : at::Tensor();
  keep(call, prefill_.run(given));
  for (std::int64_t i = read; i < first.size(1); ++i) step(first[0][i].item<std::int64_t>());
}

void Generator::step(std::int64_t token) {
  const CallDescription& call = decode_.description();
  TensorsByName inputs{{call.tokens, row({token})}};
  for (const StateTensor& tensor : call.state) inputs.emplace(*tensor.input, state_.at(tensor.name));
  if (call.start) inputs.emplace(*call.start, at::full({1}, place_++, at::kLong));
  if (call.mask && mask_.defined()) {
    if (!call.has_encoder()) mask_ = at::cat({mask_, at::ones({mask_.size(0), 1}, mask_.options())}, 1);
    inputs.emplace(*call.mask, mask_);
  }
  if (call.positions && positions_.defined()) {
    positions_ = positions_ + 1;
    inputs.emplace(*call.positions, positions_);
  }
  keep(call, decode_.run(inputs));
}

void Generator::keep(const CallDescription& description, TensorsByName outputs) {
  scores_ = outputs.at(description.logits).select(1, -1).to(at::kCPU, at::kFloat);
  TensorsByName state;
  for (const StateTensor& tensor : description.state) {
    state.emplace(tensor.name, outputs.at(tensor.output));
  }
  state_ = std::move(state);
}

}  // namespace runner
