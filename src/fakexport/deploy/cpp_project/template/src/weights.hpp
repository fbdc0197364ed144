#pragma once

#include <filesystem>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// The weights of a program from a .safetensors file, by the names that the code has for them. Throws Fault where
// one is missing, has another dtype or shape than the program takes, or has two names and two values.
TensorsByName read_weights(const PackageDescription& description, const std::filesystem::path& path);

// The constants whose values are known, which no checkpoint has: a record of the package.
TensorsByName read_constants(const std::filesystem::path& package);

}  // namespace runner
