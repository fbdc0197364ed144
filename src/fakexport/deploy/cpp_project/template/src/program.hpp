#pragma once

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <filesystem>

#include "description.hpp"
#include "tensor.hpp"

namespace runner {

// A compiled program with all its weights. One without them cannot be made: to run it would crash.
class Program {
 public:
  // Loads the native code of the package, and gives it the weights; those of a package that has them inside
  // are empty. Throws Fault where the package asks for a weight that is not among them.
  Program(const std::filesystem::path& package, PackageDescription description, TensorsByName weights);

  // The tensors of the outputs by name. `inputs` must have passed `Signature::check`.
  NamedTensors run(const TensorsByName& inputs);

 private:
  void bind();

  PackageDescription description_;
  TensorsByName weights_;  // The native code reads them where they are: they live as long as it does.
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace runner
