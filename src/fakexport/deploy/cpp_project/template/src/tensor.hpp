#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtype.hpp"

namespace runner {

using Shape = std::vector<std::int64_t>;
using TensorsByName = std::map<std::string, at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the bytes of a contiguous tensor. Throws Fault for a negative size, or for 2**63 bytes or more.
std::int64_t byte_count(const Shape& shape, const Dtype& dtype);

// Returns a new contiguous tensor on the CPU, with uninitialized values.
at::Tensor empty_tensor(const Shape& shape, const Dtype& dtype);

// Returns dtype and shape as text, such as `float32[3, 8]`.
std::string kind(const std::string& dtype, const Shape& shape);
std::string kind(const at::Tensor& tensor);

// Returns torch's name of the dtype without `torch.`, such as `float32`.
std::string dtype_name(const at::Tensor& tensor);

}  // namespace runner
