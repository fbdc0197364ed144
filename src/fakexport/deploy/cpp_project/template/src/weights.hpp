#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// What was read of a file of weights.
struct FoundWeights {
  std::filesystem::path path;       // Of the file.
  TensorsByName weights;            // By the names that the code has for them.
  std::vector<std::string> others;  // Entries that no weight of the model wants.
};

// The weights of a program from a .safetensors file: the one beside the package, or a checkpoint. Throws Fault
// where one is missing, has another dtype or shape than the program takes, or has two names and two values; and
// where the file beside the package was written with another one.
FoundWeights read_weights(const PackageDescription& description, const std::filesystem::path& package,
                          const std::optional<std::filesystem::path>& checkpoint);

// The constants whose values are known, which no checkpoint has: a record of the package.
TensorsByName read_constants(const std::filesystem::path& package);

}  // namespace runner
