#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "json.hpp"
#include "tensor.hpp"

namespace runner {

// A part of a condition: a number, a question about an input, or an operation on other parts.
struct Expression {
  enum class Kind { integer, real, size, stride, offset, value, storage, storage_bytes, property, operation };

  Kind kind = Kind::integer;
  std::int64_t integer = 0;
  double real = 0;
  std::string name;  // Of the input, or of the operation: `%`, `and`, `trunc`.
  std::string asked;  // Of the input: the name of the property.
  std::int64_t dim = 0;
  std::vector<Expression> operands;
};

// What must be true of the sizes of the inputs, or the program's results are wrong: what the branches and
// divisions of the model came to while it was traced.
struct Condition {
  std::string text;  // As Python has it: `x.shape[1] % 2 == 0`.
  Expression check;

  // Throws Fault where the value is no condition that this program can check.
  static Condition of(const json::Value& value);

  // Throws Fault where the inputs do not fulfil it: one line with the sizes and the condition. A condition that
  // cannot be computed, such as a division by zero, is not fulfilled.
  void require(const TensorsByName& given) const;
};

}  // namespace runner
