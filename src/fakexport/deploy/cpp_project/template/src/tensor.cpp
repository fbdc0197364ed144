#include "tensor.hpp"

#include <ATen/ops/empty.h>

#include "fault.hpp"

namespace runner {

std::int64_t byte_count(const Shape& shape, const Dtype& dtype) {
  std::int64_t count = static_cast<std::int64_t>(c10::elementSize(dtype.type));
  for (const std::int64_t size : shape) {
    if (size < 0) throw Fault("a negative size");
    if (__builtin_mul_overflow(count, size, &count)) throw Fault("more bytes than 63 bits can count");
  }
  return count;
}

at::Tensor empty_tensor(const Shape& shape, const Dtype& dtype) {
  byte_count(shape, dtype);
  return at::empty(shape, at::TensorOptions().dtype(dtype.type));
}

std::string kind(const std::string& dtype, const Shape& shape) {
  std::string text = dtype + "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string kind(const at::Tensor& tensor) { return kind(dtype_name(tensor), tensor.sizes().vec()); }

std::string dtype_name(const at::Tensor& tensor) {
  const Dtype* dtype = dtype_of(tensor.scalar_type());
  return dtype ? std::string(dtype->name) : c10::toString(tensor.scalar_type());
}

}  // namespace runner
