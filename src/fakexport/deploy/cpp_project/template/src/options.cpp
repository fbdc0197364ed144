#include "options.hpp"

#include "fault.hpp"

namespace runner {

const char* const usage =
    "run --package FILE [--weights PATH] [--library FILE]... [--inputs FILE | NAME=FILE.npy...] [--output "
    "PATH]\n"
    "\n"
    "  --package  the compiled program, .pt2\n"
    "  --weights  its weights: a .safetensors file, a shard index (.safetensors.index.json), or a folder\n"
    "             with either (default: the file next to the package, unless the package contains them)\n"
    "  --library  a library that registers operators; may be given several times\n"
    "  --inputs   one .safetensors file with all inputs, or an .npy file for each: --inputs x=x.npy y=y.npy\n"
    "  --output   a .safetensors file, or a new folder for one .npy file per output\n"
    "\n"
    "Exit code 0: done. 2: bad usage, file, input or machine; one line says why, and nothing is "
    "written.\n";

Options Options::parse(const std::vector<std::string>& arguments) {
  Options found;
  std::size_t at = 0;
  const auto is_value = [&](std::size_t i) {
    return i < arguments.size() && arguments[i].rfind("-", 0) != 0;
  };
  const auto value = [&](const std::string& option) {
    if (!is_value(at)) throw Fault(option + " needs a value; see --help");
    return arguments[at++];
  };
  while (at < arguments.size()) {
    const std::string option = arguments[at++];
    if (option == "--help" || option == "-h") {
      found.wants_help = true;
    } else if (option == "--package") {
      found.package = value(option);
    } else if (option == "--weights") {
      found.weights = value(option);
    } else if (option == "--library") {
      found.libraries.emplace_back(value(option));
    } else if (option == "--inputs") {
      do found.inputs.push_back(value(option));
      while (is_value(at));
    } else if (option == "--output" || option == "-o") {
      found.output = value(option);
    } else {
      throw Fault("unknown option " + in_quotes(option) + "; see --help");
    }
  }
  if (found.package.empty() && !found.wants_help) throw Fault("--package is missing; see --help");
  return found;
}

}  // namespace runner
