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

// Bytes of a contiguous tensor. Throws Fault for a negative size, and for more bytes than 63 bits can count.
std::int64_t byte_count(const Shape& shape, const Dtype& dtype);

// A contiguous tensor in memory of its own on the CPU, without values yet.
at::Tensor empty_tensor(const Shape& shape, const Dtype& dtype);

// `float32[3, 8]`
std::string kind(const std::string& dtype, const Shape& shape);
std::string kind(const at::Tensor& tensor);

// torch's name without `torch.`: `float32`.
std::string dtype_name(const at::Tensor& tensor);

}  // namespace runner
