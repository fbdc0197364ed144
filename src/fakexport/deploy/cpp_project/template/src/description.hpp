#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "signature.hpp"
#include "tensor.hpp"

namespace runner {

// A weight as the program takes it. Where weights are tied, a file may have it under an alias.
struct Weight {
  std::string name;
  std::string dtype;
  Shape shape;
  std::vector<std::string> aliases;
};

// What fakexport wrote into a package about the program in it.
//
//   orders         of each input, its dimensions from the outermost in memory to the innermost
//   device         `cpu`, `cuda`
//   weights        what a file of weights has to have: nothing where they are inside
//   program_id     tells the program from others, its weights left aside
//   unread         names of the program that such a file may have and that are not read from it: constants,
//                  which the package has, and what the code does not use
//   torch_version  of the torch that compiled it
//   machine        `x86_64`
//   instructions   extensions of the processor that the code may use
//   libraries_for  what torch does not have: operators, `signal_ops.soft_clip.default`, and C++ classes,
//                  `signal_ops::Polynomial`
struct PackageDescription {
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

  // Reads the description; no code of the package runs. Throws Fault where the file is no package, or none of
  // fakexport.
  static PackageDescription of(const std::filesystem::path& package);

  // Throws Fault where this processor, this libtorch or its devices cannot run the code.
  void check_machine() const;

  // Throws Fault for the first operator or class that no loaded library registers.
  void check_libraries() const;
};

}  // namespace runner
