// Generates tokens with the prefill and decode programs of a language model.

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "description.hpp"
#include "fault.hpp"
#include "generation.hpp"
#include "sampling.hpp"
#include "text_printer.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace {

using namespace runner;
namespace fs = std::filesystem;

const char* const usage =
    "generate [--prompt-ids ID,ID,... | --prompt TEXT]... [--tokenizer FILE] [--max-new-tokens N]\n"
    "         [--folder DIR] [--weights PATH]\n"
    "         [--temperature X] [--top-k N] [--top-p X] [--seed N] [--eos ID,ID,...|none]\n"
    "         [--inputs FILE | NAME=FILE.npy...] [--library FILE]...\n"
    "\n"
    "  --prompt-ids      token ids of a prompt; may be given several times\n"
    "  --prompt          text of a prompt; needs --tokenizer; may be given several times\n"
    "  --tokenizer       the model's tokenizer.json: print text; needs a build with tokenizers (README.md)\n"
    "  --max-new-tokens  maximum number of tokens to generate (default: 64)\n"
    "  --folder          folder of generation.json, prefill.aoti.pt2 and decode.aoti.pt2 (default: .)\n"
    "  --weights         a .safetensors file, a shard index (.safetensors.index.json), or a folder with either\n"
    "                    (default: model.safetensors in the folder)\n"
    "  --temperature, --top-k, --top-p, --seed  sample tokens instead of choosing the most likely one\n"
    "  --eos             token ids that end a sequence (default: the EOS ids of the model's generation config)\n"
    "  --inputs          further inputs of prefill, such as pixel_values, for one prompt\n"
    "  --library         a library that registers operators; may be given several times\n"
    "\n"
    "Prints the new token ids of each prompt on a line, or the decoded text with --tokenizer.\n"
    "Exit code 0: done. 2: bad usage, file, input or machine; one line says why.\n";

struct Options {
  std::vector<Tokens> prompts;
  std::vector<std::string> texts;
  std::optional<fs::path> tokenizer;
  std::int64_t most_new = 64;
  fs::path folder = ".";
  std::optional<fs::path> weights;
  std::vector<fs::path> libraries;
  std::vector<std::string> inputs;
  std::optional<Tokens> eos;
  Sampling sampling;
  bool wants_help = false;
};

template <typename T>
T number(const std::string& option, const std::string& text) {
  T found{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (fault != std::errc() || end != text.data() + text.size()) {
    throw Fault(option + " " + in_quotes(text) + " is not a number in range");
  }
  return found;
}

Tokens ids(const std::string& option, const std::string& text) {
  Tokens found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    found.push_back(number<std::int64_t>(option, text.substr(at, comma - at)));
    at = comma + 1;
  }
  return found;
}

void require(bool is_in_range, const std::string& text) {
  if (!is_in_range) throw Fault(text);
}

Options parse(const std::vector<std::string>& arguments) {
  Options found;
  std::size_t at = 0;
  const auto is_value = [&](std::size_t i) {
    return i < arguments.size() && arguments[i].rfind("--", 0) != 0;
  };
  const auto value = [&](const std::string& option) {
    if (!is_value(at)) throw Fault(option + " needs a value; see --help");
    return arguments[at++];
  };
  while (at < arguments.size()) {
    const std::string option = arguments[at++];
    if (option == "--help" || option == "-h") {
      found.wants_help = true;
    } else if (option == "--prompt-ids") {
      found.prompts.push_back(ids(option, value(option)));
    } else if (option == "--prompt") {
      if (at == arguments.size()) throw Fault(option + " needs a value; see --help");
      found.texts.push_back(arguments[at++]);  // A text may begin with dashes.
    } else if (option == "--tokenizer") {
      found.tokenizer = value(option);
    } else if (option == "--max-new-tokens") {
      found.most_new = number<std::int64_t>(option, value(option));
      require(found.most_new > 0, "--max-new-tokens must be 1 or more");
    } else if (option == "--folder") {
      found.folder = value(option);
    } else if (option == "--weights") {
      found.weights = value(option);
    } else if (option == "--library") {
      found.libraries.emplace_back(value(option));
    } else if (option == "--inputs") {
      do found.inputs.push_back(value(option));
      while (is_value(at));
    } else if (option == "--temperature") {
      found.sampling.temperature = number<double>(option, value(option));
      require(*found.sampling.temperature >= 1e-6 && std::isfinite(*found.sampling.temperature),
              "--temperature must be at least 1e-6");
    } else if (option == "--top-k") {
      found.sampling.top_k = number<std::int64_t>(option, value(option));
      require(*found.sampling.top_k > 0, "--top-k must be 1 or more");
    } else if (option == "--top-p") {
      found.sampling.top_p = number<double>(option, value(option));
      require(*found.sampling.top_p > 0 && *found.sampling.top_p <= 1,
              "--top-p must be above 0 and at most 1");
    } else if (option == "--seed") {
      found.sampling.seed = number<std::uint64_t>(option, value(option));
    } else if (option == "--eos") {
      const std::string text = value(option);
      found.eos = text == "none" ? Tokens() : ids(option, text);
    } else {
      throw Fault("unknown option " + in_quotes(option) + "; see --help");
    }
  }
  require(found.texts.empty() || found.tokenizer,
          "--prompt needs --tokenizer, the tokenizer.json of the model");
  require(found.texts.empty() || found.prompts.empty(), "use either --prompt or --prompt-ids, not both");
  require(found.inputs.empty() || found.prompts.size() + found.texts.size() < 2,
          "--inputs can be used with only one prompt");
  return found;
}

PackageDescription opened(const fs::path& package) {
  PackageDescription found = PackageDescription::of(package);
  found.check_machine();
  found.check_libraries();
  if (!found.has_weights_beside) throw Fault(package.string() + " contains its weights: compile it with --weights beside");
  return found;
}

// Reads the weights of both programs. A shared weight is read and moved to the device once.
std::pair<TensorsByName, TensorsByName> read_both(const Options& options, const PackageDescription& prefill,
                                                  const PackageDescription& decode) {
  const fs::path from = options.weights.value_or(options.folder / "model.safetensors");
  FoundWeights first = read_weights(prefill, options.folder / "prefill.aoti.pt2", from);
  for (auto& [name, weight] : first.weights) weight = weight.to(at::Device(prefill.device));
  FoundWeights second = read_weights(decode, options.folder / "decode.aoti.pt2", from, first.weights);
  std::vector<std::string> others;  // Entries that neither program reads.
  for (const std::string& name : first.others) {
    if (std::count(second.others.begin(), second.others.end(), name)) others.push_back(name);
  }
  note_others(first.path, others);
  return {std::move(first.weights), std::move(second.weights)};
}

Generator generator_of(const Options& options) {
  GenerationDescription description = GenerationDescription::of(options.folder / "generation.json");
  const fs::path prefill_package = options.folder / "prefill.aoti.pt2";
  const fs::path decode_package = options.folder / "decode.aoti.pt2";
  PackageDescription prefill = opened(prefill_package), decode = opened(decode_package);
  description.prefill.check(prefill.signature, /*is_decode=*/false);
  description.decode.check(decode.signature, /*is_decode=*/true);
  auto [of_prefill, of_decode] = read_both(options, prefill, decode);
  TensorsByName constants = read_constants(prefill_package, prefill), own = read_constants(decode_package, decode);
  for (const std::string& name : description.decode.kept) {
    // Both programs write into the static cache, so it must be the same tensor, already on the device.
    if (!constants.count(name)) throw Fault("prefill.aoti.pt2 has no cache buffer " + in_quotes(name));
    own[name] = constants[name] = constants[name].to(at::Device(prefill.device));
  }
  of_prefill.merge(std::move(constants));
  of_decode.merge(std::move(own));
  return Generator(
      Call(std::move(description.prefill), prefill_package, std::move(prefill), std::move(of_prefill)),
      Call(std::move(description.decode), decode_package, std::move(decode), std::move(of_decode)),
      std::move(description.defaults));
}

void write(const Tokens& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) std::cout << (i ? "," : "") << tokens[i];
}

void generate(const Options& options) {
  for (const fs::path& library : options.libraries) load_library(library);
  const TensorsByName inputs = read_inputs(options.inputs);
  std::vector<std::optional<Tokens>> prompts(options.prompts.begin(), options.prompts.end());
  std::optional<Tokenizer> tokenizer;
  if (options.tokenizer) tokenizer.emplace(*options.tokenizer, options.texts);
  for (const std::string& text : options.texts) prompts.emplace_back(tokenizer->tokens(text));
  if (prompts.empty()) prompts.emplace_back();
  Generator generator = generator_of(options);
  for (const std::string& name : generator.defaults().not_applied) {
    write_line("note", name + " of the model's generation config is not applied");
  }
  if (const std::string& own = generator.defaults().own_generate; !own.empty()) {
    write_line("note", own + " has its own generate, which is not used: generation calls its forward");
  }
  if (generator.defaults().is_drawn && options.sampling.is_greedy()) {
    write_line("note", "do_sample of the model's generation config is not applied: pass --temperature, --top-k or "
                       "--top-p to sample");
  }
  const Tokens eos = options.eos.value_or(generator.defaults().eos);
  at::Generator random = at::detail::createCPUGenerator(options.sampling.seed);
  for (const auto& prompt : prompts) {
    std::optional<TextPrinter> printer;
    if (tokenizer) printer.emplace(*tokenizer);
    const auto report = [&](const Tokens& tokens, bool is_last) {
      if (printer) {
        printer->print(tokens, is_last);
      } else if (is_last) {
        write(tokens);
      }
    };
    generator(prompt, inputs, options.most_new, options.sampling, random, eos, report);
    std::cout << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return finished([&] {
    const Options options = parse(std::vector<std::string>(argv + 1, argv + argc));
    if (options.wants_help) {
      std::cout << usage;
    } else {
      generate(options);
    }
  });
}
