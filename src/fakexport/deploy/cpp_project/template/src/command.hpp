#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tensor.hpp"

namespace runner {

// Writes one line to stderr. Unprintable characters, for example in names from a file, are replaced.
void write_line(const std::string& kind, const std::string& text);

// Loads a library, which registers its operators.
void load_library(const std::filesystem::path& path);

// Reads the inputs: one .safetensors file with all of them, or NAME=FILE.npy for each.
TensorsByName read_inputs(const std::vector<std::string>& sources);

// Prints a note about the unexpected keys of a checkpoint, if there are any.
void note_others(const std::filesystem::path& path, const std::vector<std::string>& others);

// Runs the work of a program. Returns its exit code: 0, or 2 after an error, which is one line on stderr.
int finished(const std::function<void()>& work);

}  // namespace runner
