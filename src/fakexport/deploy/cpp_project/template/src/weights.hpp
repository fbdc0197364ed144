#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// What was read of a checkpoint.
struct FoundWeights {
  std::filesystem::path path;       // Of its file, or of its index.
  TensorsByName weights;            // By the names that the code has for them.
  std::vector<std::string> others;  // Entries that no weight of the model wants.
};

// The weights of a program from the .safetensors file beside the package, or from what is given: one such file,
// the index of several, or a folder with either. Throws Fault where a weight is missing, has another dtype or
// shape than the program takes, or has two names and two values; and where the file beside the package was
// written with another one. A weight of a name that `known` has is not read again.
FoundWeights read_weights(const PackageDescription& description, const std::filesystem::path& package,
                          const std::optional<std::filesystem::path>& given, const TensorsByName& known = {});

// The constants whose values are known, which no checkpoint has: a record of the package.
TensorsByName read_constants(const std::filesystem::path& package);

}  // namespace runner
