#pragma once

#include <filesystem>

#include "tensor.hpp"

namespace runner {

// Reads the array of a .npy file (versions 1 to 3) into new memory. Throws Fault if the file is damaged, or
// contains Python objects, text, or big-endian numbers.
at::Tensor read_npy(const std::filesystem::path& path);

// Writes `<name>.npy` for each tensor into a new or empty folder, atomically. Throws Fault for dtypes that
// the npy format does not support, such as bfloat16.
void write_npy_folder(const std::filesystem::path& folder, const NamedTensors& tensors);

}  // namespace runner
