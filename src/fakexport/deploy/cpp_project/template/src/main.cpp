// Runs a program that fakexport compiled, without Python or the model's code.

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "command.hpp"
#include "description.hpp"
#include "fault.hpp"
#include "npy.hpp"
#include "options.hpp"
#include "program.hpp"
#include "safetensors.hpp"
#include "tensor.hpp"
#include "weights.hpp"

namespace {

using namespace runner;
namespace fs = std::filesystem;

void write_outputs(const fs::path& path, const NamedTensors& outputs) {
  if (path.extension() == ".safetensors") {
    write_safetensors(path, outputs);
  } else {
    write_npy_folder(path, outputs);
  }
}

// Reads the weights and the constants of the program.
TensorsByName all_weights(const Options& options, const PackageDescription& description) {
  FoundWeights found = read_weights(description, options.package, options.weights);
  note_others(found.path, found.others);
  found.weights.merge(read_constants(options.package, description));
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
  description = description.for_sizes(options.package, inputs);
  description.signature.check(inputs);
  TensorsByName weights;
  if (description.has_weights_beside) weights = all_weights(options, description);
  const NamedTensors outputs =
      Program(options.package, std::move(description), std::move(weights)).run(inputs);
  if (options.output) write_outputs(*options.output, outputs);
  for (const auto& [name, tensor] : outputs) std::cout << name << "  " << kind(tensor) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  return finished([&] {
    const Options options = Options::parse(std::vector<std::string>(argv + 1, argv + argc));
    if (options.wants_help) {
      std::cout << usage;
    } else {
      run(options);
    }
  });
}
