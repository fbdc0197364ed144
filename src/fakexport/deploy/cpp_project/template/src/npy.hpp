#pragma once

#include <filesystem>

#include "tensor.hpp"

namespace runner {

// The array of a .npy file (versions 1 to 3), in memory of its own. Throws Fault where the file is damaged,
// or holds Python objects, text, or big-endian numbers.
at::Tensor read_npy(const std::filesystem::path& path);

// Writes `<name>.npy` for each tensor into a new folder that is there as a whole or not at all. An empty
// folder may be there already. Throws Fault for dtypes that npy has no name for, such as bfloat16.
void write_npy_folder(const std::filesystem::path& folder, const NamedTensors& tensors);

}  // namespace runner
