#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace runner {

// The options of the command line.
struct Options {
  std::filesystem::path package;
  std::optional<std::filesystem::path> weights;
  std::vector<std::filesystem::path> libraries;
  std::vector<std::string> inputs;
  std::optional<std::filesystem::path> output;
  bool wants_help = false;

  // Throws Fault for an unknown option, or if --package is missing.
  static Options parse(const std::vector<std::string>& arguments);
};

extern const char* const usage;

}  // namespace runner
