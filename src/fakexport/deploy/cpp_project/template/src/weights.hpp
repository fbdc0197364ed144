#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// What was read of a file of weights.
struct FoundWeights {
  TensorsByName weights;            // By the names that the code has for them.
  std::vector<std::string> others;  // Entries that no weight of the program wants.
};

// The weights of a program from a .safetensors file. Throws Fault where one is missing, has another dtype or
// shape than the program takes, or has two names and two values.
FoundWeights read_weights(const PackageDescription& description, const std::filesystem::path& path);

// The constants whose values are known, which no checkpoint has: a record of the package.
TensorsByName read_constants(const std::filesystem::path& package);

}  // namespace runner
