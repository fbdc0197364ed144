#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace runner {

// A dtype with its names in torch, safetensors and npy. A name is empty if the format does not support it.
struct Dtype {
  at::ScalarType type;
  std::string_view name;
  std::string_view safetensors;
  std::string_view npy;
};

// Each returns nullptr if there is no such dtype.
const Dtype* dtype_of(at::ScalarType type);
const Dtype* dtype_of_safetensors(std::string_view name);
const Dtype* dtype_of_npy(std::string_view name);

}  // namespace runner
