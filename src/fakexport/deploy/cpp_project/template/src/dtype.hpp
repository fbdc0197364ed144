#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace runner {

// One type of element by its names: torch's, that of safetensors, that of npy. Empty: the format has none.
struct Dtype {
  at::ScalarType type;
  std::string_view name;
  std::string_view safetensors;
  std::string_view npy;
};

// Each returns nullptr where there is none.
const Dtype* dtype_of(at::ScalarType type);
const Dtype* dtype_of_safetensors(std::string_view name);
const Dtype* dtype_of_npy(std::string_view name);

}  // namespace runner
