// Runs a program that fakexport compiled: no Python, no model code.

#include <dlfcn.h>

#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "description.hpp"
#include "fault.hpp"
#include "npy.hpp"
#include "options.hpp"
#include "printable.hpp"
#include "program.hpp"
#include "safetensors.hpp"
#include "tensor.hpp"
#include "weights.hpp"

namespace {

using namespace runner;
namespace fs = std::filesystem;

// Says something on stderr, in one line, whatever a file has in its names.
void write_line(const std::string& kind, const std::string& text) {
  std::cerr << kind << ": " << printable(text) << '\n';
}

// Registers its operators. They stay loaded, as the dispatcher keeps pointers into them.
void load_library(const fs::path& path) {
  if (!fs::exists(path)) throw Fault(path.string() + ": no such file");
  // Absolute: for a bare name the system looks in its own folders.
  if (!::dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    throw Fault("the library cannot be loaded: " + std::string(::dlerror()));
  }
}

TensorsByName read_inputs(const std::vector<std::string>& sources) {
  TensorsByName inputs;
  for (const std::string& source : sources) {
    if (fs::path(source).extension() == ".safetensors" && sources.size() == 1) {
      const SafetensorsFile file(source);
      for (const auto& [name, entry] : file.entries()) inputs.emplace(name, file.tensor(name));
      break;
    }
    const std::size_t equals = source.find('=');
    if (equals == std::string::npos)
      throw Fault(in_quotes(source) + " is neither NAME=FILE.npy nor one .safetensors file");
    const std::string name = source.substr(0, equals);
    if (!inputs.emplace(name, read_npy(source.substr(equals + 1))).second) {
      throw Fault("the input " + in_quotes(name) + " is given twice");
    }
  }
  return inputs;
}

void write_outputs(const fs::path& path, const NamedTensors& outputs) {
  if (path.extension() == ".safetensors") {
    write_safetensors(path, outputs);
  } else {
    write_npy_folder(path, outputs);
  }
}

// Weights of the program, and its constants.
TensorsByName all_weights(const Options& options, const PackageDescription& description) {
  FoundWeights found = read_weights(description, options.package, options.weights);
  if (!found.others.empty()) {
    const std::size_t count = found.others.size();
    const std::string entries = count == 1 ? "an entry" : std::to_string(count) + " entries";
    write_line("note", found.path.string() + " has " + entries + " that the model does not use: " +
                           in_quotes(found.others[0]) + (count == 1 ? "" : ", ..."));
  }
  found.weights.merge(read_constants(options.package));
  return found.weights;
}

void run(const Options& options) {
  for (const fs::path& library : options.libraries) load_library(library);
  PackageDescription description = PackageDescription::of(options.package);
  description.check_machine();
  description.check_libraries();
  if (options.weights && !description.has_weights_beside) {
    throw Fault("the package contains its weights: drop --weights");
  }
  const TensorsByName inputs = read_inputs(options.inputs);
  description.signature.check(inputs);
  TensorsByName weights;
  if (description.has_weights_beside) weights = all_weights(options, description);
  const NamedTensors outputs =
      Program(options.package, std::move(description), std::move(weights)).run(inputs);
  if (options.output) write_outputs(*options.output, outputs);
  for (const auto& [name, tensor] : outputs) std::cout << name << "  " << kind(tensor) << '\n';
}

int report(const std::string& text) {
  write_line("error", text);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = Options::parse(std::vector<std::string>(argv + 1, argv + argc));
    if (options.wants_help) {
      std::cout << usage;
    } else {
      run(options);
    }
    return 0;
  } catch (const Fault& fault) {
    return report(fault.what());
  } catch (const std::bad_alloc&) {
    return report("out of memory");
  } catch (const std::exception& error) {
    return report(first_line(error));
  } catch (...) {
    return report("an unknown error");
  }
}
