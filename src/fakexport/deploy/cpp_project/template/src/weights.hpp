#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// The weights that were read from a checkpoint.
struct FoundWeights {
  std::filesystem::path path;       // Path of the checkpoint's file or index.
  TensorsByName weights;            // Weights by their name in the compiled code.
  std::vector<std::string> others;  // Unexpected keys: entries that the model does not use.
};

// Reads the weights of a program from `given`: a .safetensors file, an index of shards, or a folder with
// either. Default: the .safetensors file next to the package. Throws Fault if a weight is missing, has a
// different dtype or shape, or has two names with different values; or if the file next to the package
// belongs to a different package. Weights that are in `known` are not read again.
FoundWeights read_weights(const PackageDescription& description, const std::filesystem::path& package,
                          const std::optional<std::filesystem::path>& given, const TensorsByName& known = {});

// Reads the constants of a code in the package: tensors with known values that checkpoints do not contain.
TensorsByName read_constants(const std::filesystem::path& package, const PackageDescription& description);

}  // namespace runner
