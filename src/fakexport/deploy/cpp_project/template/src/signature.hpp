#pragma once

#include <optional>
#include <string>
#include <vector>

#include "condition.hpp"
#include "json.hpp"
#include "tensor.hpp"

namespace runner {

// A size of an input: `times * symbol + plus`, or `plus` if there is no symbol.
struct Dimension {
  bool is_checked = true;  // False for a size that is not linear in one symbol.
  std::optional<std::string> symbol;
  std::int64_t times = 0;
  std::int64_t plus = 0;
  std::optional<std::int64_t> lower;
  std::optional<std::int64_t> upper;

  std::string text() const;  // `2*s17+1`, `?`
};

struct InputTensor {
  std::string name;
  std::string dtype;
  std::vector<Dimension> shape;
};

// A leaf of a call's output. Leaves that are not tensors (numbers and None) are omitted from the results.
struct OutputLeaf {
  std::string name;
  bool is_tensor;
};

// The inputs and outputs of a program, by name.
struct Signature {
  std::vector<InputTensor> inputs;  // In the order of the flat call.
  std::vector<OutputLeaf> outputs;  // In the order in which they are returned.
  std::vector<Condition> conditions;

  static Signature of(const json::Value& value);

  // Checks the inputs of a call before anything runs: names, dtypes, sizes, ranges and conditions. Throws
  // Fault for the first mismatch, with the same message as `fakexport run`.
  void check(const TensorsByName& given) const;
};

}  // namespace runner
