#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "json.hpp"
#include "tensor.hpp"

namespace runner {

// A node of a condition's expression tree: a number, a property of an input, or an operation on other nodes.
struct Expression {
  enum class Kind { integer, real, size, stride, offset, value, storage, storage_bytes, property, operation };

  Kind kind = Kind::integer;
  std::int64_t integer = 0;
  double real = 0;
  std::string name;  // Name of the input, or of the operation: `%`, `and`, `trunc`.
  std::string asked;  // Name of the input's property.
  std::int64_t dim = 0;
  std::vector<Expression> operands;
};

// A guard on the inputs of a call, from a branch, division or comparison during the trace. If it is violated,
// the program's results are wrong.
struct Condition {
  std::string text;  // The guard as Python source: `x.shape[1] % 2 == 0`.
  Expression check;

  // Throws Fault if the value is not a condition that this program can check.
  static Condition of(const json::Value& value);

  // Throws Fault, with the sizes and the condition, if the inputs violate the condition. A condition that
  // cannot be computed, for example because of a division by zero, counts as violated.
  void require(const TensorsByName& given) const;
};

}  // namespace runner
