#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tensor.hpp"

namespace runner {

// Says something on stderr, in one line, whatever a file has in its names.
void write_line(const std::string& kind, const std::string& text);

// Registers the operators of a library.
void load_library(const std::filesystem::path& path);

// The tensors of one .safetensors file, or of NAME=FILE.npy for each.
TensorsByName read_inputs(const std::vector<std::string>& sources);

// A note on the entries of a checkpoint that no weight is read from; nothing where there are none.
void note_others(const std::filesystem::path& path, const std::vector<std::string>& others);

// Runs the work of a program; returns its exit code: 0, or 2 after one line on stderr.
int finished(const std::function<void()>& work);

}  // namespace runner
