#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "signature.hpp"
#include "tensor.hpp"

namespace runner {

// A weight that the program expects. A file may contain a tied weight under an alias.
struct Weight {
  std::string name;
  std::string dtype;
  Shape shape;
  std::vector<std::string> aliases;
};

// fakexport's metadata of the program in a package.
//
//   codes          names of the codes in the package: `model`, or the capability of each of several GPUs
//   code           the code for this machine, or the first
//   orders         memory order of each input: its dimensions from the outermost to the innermost
//   device         `cpu` or `cuda`
//   weights        the weights that a weights file must contain; empty if they are inside the package
//   program_id     hash of the program without its weights
//   unread         names that a weights file may contain but that are not read: constants, which the package
//                  contains, and tensors that the code does not use
//   torch_version  version of the torch that compiled the package
//   machine        `x86_64`
//   instructions   CPU extensions that the code may use, or the GPU's capability
//   libraries_for  operators, `signal_ops.soft_clip.default`, and C++ classes, `signal_ops::Polynomial`, that
//                  libraries must register
struct PackageDescription {
  std::vector<std::string> codes;
  std::string code;
  Signature signature;
  std::vector<Shape> orders;
  std::string device;
  bool has_weights_beside;
  std::vector<Weight> weights;
  std::string program_id;
  std::vector<std::string> unread;
  std::string torch_version;
  std::string machine;
  std::vector<std::string> instructions;
  std::vector<std::string> libraries_for;

  // Reads the description without running code of the package. Throws Fault if the file is not a package that
  // fakexport wrote.
  static PackageDescription of(const std::filesystem::path& package);

  // Throws Fault if this processor, this libtorch or the available devices cannot run the code.
  void check_machine() const;

  // Throws Fault for the first operator or class that no loaded library registers.
  void check_libraries() const;
};

}  // namespace runner
