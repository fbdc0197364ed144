#pragma once

#include <optional>
#include <string>
#include <vector>

#include "condition.hpp"
#include "json.hpp"
#include "tensor.hpp"

namespace runner {

// A size: `times * symbol + plus`, or `plus` where there is no symbol.
struct Dimension {
  bool is_checked = true;  // False for a size that is no linear expression of one symbol.
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

// A leaf of what a call returns; one that is no tensor is a number or None, and not among the results.
struct OutputLeaf {
  std::string name;
  bool is_tensor;
};

// What a program takes and gives, by name.
struct Signature {
  std::vector<InputTensor> inputs;  // In the order of the call.
  std::vector<OutputLeaf> outputs;  // In the order of what is returned.
  std::vector<Condition> conditions;

  static Signature of(const json::Value& value);

  // Refuses a call before anything runs: names, dtypes, sizes against each other and against the ranges, and the
  // conditions. The Fault says the first thing that does not fit, in the words of `fakexport run`.
  void check(const TensorsByName& given) const;
};

}  // namespace runner
