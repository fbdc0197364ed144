#pragma once

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <filesystem>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// A compiled program with all of its weights. Running a package without weights would crash the process.
class Program {
 public:
  // Loads the native code of the package and binds the weights. `weights` is empty if the package contains
  // its weights. Throws Fault if the weights that the package expects are different.
  Program(const std::filesystem::path& package, PackageDescription description, TensorsByName weights);

  // Runs the program and returns its output tensors by name. `inputs` must have passed `Signature::check`.
  NamedTensors run(const TensorsByName& inputs);

 private:
  void bind();

  PackageDescription description_;
  TensorsByName weights_;  // The native code refers to these tensors, so they must outlive it.
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace runner
