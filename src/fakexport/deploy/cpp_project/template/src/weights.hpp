#pragma once

#include <filesystem>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// The weights of a program from a .safetensors file. Throws Fault before anything is read where one is
// missing, is too much, or has another dtype or shape than the program takes.
TensorsByName read_weights(const PackageDescription& description, const std::filesystem::path& path);

}  // namespace runner
