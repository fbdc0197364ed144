#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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

// The sizes of a dimension of an input for which a code is. Without `max`, there is no largest size.
struct SizeRange {
  std::string input;
  std::size_t dim;
  std::int64_t min;
  std::optional<std::int64_t> max;

  bool contains(std::int64_t size) const { return size >= min && (!max || size <= *max); }
  std::string text() const;  // `1`, `2..32`
};

// fakexport's metadata of the program in a package.
//
//   codes          names of the codes in the package: `model`; the capability of each of several GPUs; or the
//                  program of each of several ranges of sizes
//   code           the code for this machine, or the first
//   sizes          the sizes for which the code is, if there are several ranges of sizes
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
  std::vector<SizeRange> sizes;
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

  // Returns the description of the code for the sizes of these inputs: this one, unless the package has codes
  // for several ranges of sizes. Throws Fault if no code is for these sizes.
  PackageDescription for_sizes(const std::filesystem::path& package, const TensorsByName& inputs) const;

  // Throws Fault if this processor, this libtorch or the available devices cannot run the code.
  void check_machine() const;

  // Throws Fault for the first operator or class that no loaded library registers.
  void check_libraries() const;
};

}  // namespace runner
