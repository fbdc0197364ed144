#include "signature.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "fault.hpp"

namespace runner {
namespace {

std::optional<std::int64_t> bound(const json::Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.integer());
}

Dimension dimension(const json::Value& value) {
  Dimension found;
  if (value.is_null()) {
    found.is_checked = false;
  } else if (value.is_integer()) {
    found.plus = value.integer();
  } else {
    found.symbol = value.at("symbol").text();
    found.times = value.at("times").integer();
    found.plus = value.at("plus").integer();
    found.lower = bound(value.at("lower"));
    found.upper = bound(value.at("upper"));
    found.is_checked = value.at("is_checked").boolean();
    if (found.times < 1) throw Fault("a dimension is " + std::to_string(found.times) + " times a symbol");
  }
  return found;
}

template <typename Items>
std::string listed(const Items& items) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + item;
  return text.empty() ? "none" : text;
}

std::string wanted_kind(const InputTensor& wanted) {
  std::string text = wanted.dtype + "[";
  for (std::size_t i = 0; i < wanted.shape.size(); ++i) text += (i ? ", " : "") + wanted.shape[i].text();
  return text + "]";
}

// Checks sizes. The first size with a symbol determines the symbol's value for the other sizes.
class SizeCheck {
 public:
  void check(const std::string& found, std::int64_t size, const Dimension& wanted) {
    if (!wanted.is_checked) return;
    if (!wanted.symbol) {
      if (size != wanted.plus) throw refused(found, wanted.text());
      return;
    }
    std::int64_t rest = 0, expected = 0;
    if (__builtin_sub_overflow(size, wanted.plus, &rest) || rest % wanted.times != 0) {
      throw refused(found, wanted.text());
    }
    const std::int64_t value = rest / wanted.times;
    const auto& [known, from] = values_.try_emplace(*wanted.symbol, value, found).first->second;
    if (known != value) {
      const bool is_beyond = __builtin_mul_overflow(wanted.times, known, &expected) ||
                             __builtin_add_overflow(expected, wanted.plus, &expected);
      throw refused(found, (is_beyond ? wanted.text() : std::to_string(expected)) + ", since " + from);
    }
    if (wanted.lower && size < *wanted.lower)
      throw refused(found, "at least " + std::to_string(*wanted.lower));
    if (wanted.upper && size > *wanted.upper)
      throw refused(found, "at most " + std::to_string(*wanted.upper));
  }

 private:
  static Fault refused(const std::string& found, const std::string& takes) {
    return Fault(found + ", but the program expects " + takes);
  }

  std::map<std::string, std::pair<std::int64_t, std::string>> values_;
};

}  // namespace

std::string Dimension::text() const {
  if (!is_checked) return "?";
  if (!symbol) return std::to_string(plus);
  const std::string product = times == 1 ? *symbol : std::to_string(times) + "*" + *symbol;
  return plus == 0 ? product : product + (plus > 0 ? "+" : "") + std::to_string(plus);
}

Signature Signature::of(const json::Value& value) {
  Signature found;
  for (const json::Value& input : value.at("inputs").array()) {
    InputTensor tensor{input.at("name").text(), input.at("dtype").text(), {}};
    for (const json::Value& size : input.at("shape").array()) tensor.shape.push_back(dimension(size));
    found.inputs.push_back(std::move(tensor));
  }
  for (const json::Value& leaf : value.at("outputs").array()) {
    found.outputs.push_back({leaf.at("name").text(), leaf.at("is_tensor").boolean()});
  }
  for (const json::Value& condition : value.at("conditions").array()) {
    found.conditions.push_back(Condition::of(condition));
  }
  return found;
}

void Signature::check(const TensorsByName& given) const {
  std::vector<std::string> known, names;
  for (const InputTensor& input : inputs) known.push_back(input.name);
  for (const auto& [name, tensor] : given) names.push_back(name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Fault("the program has no input " + in_quotes(name) + "; it has " + listed(known));
    }
  }
  SizeCheck sizes;
  for (const InputTensor& wanted : inputs) {
    const auto found = given.find(wanted.name);
    if (found == given.end()) {
      throw Fault("the input " + in_quotes(wanted.name) + " is missing; got " + listed(names));
    }
    const at::Tensor& tensor = found->second;
    if (dtype_name(tensor) != wanted.dtype ||
        tensor.dim() != static_cast<std::int64_t>(wanted.shape.size())) {
      throw Fault("the input " + in_quotes(wanted.name) + " is " + kind(tensor) +
                  ", but the program expects " + wanted_kind(wanted));
    }
    for (std::size_t i = 0; i < wanted.shape.size(); ++i) {
      const std::int64_t size = tensor.size(static_cast<std::int64_t>(i));
      const std::string place = " in dimension " + std::to_string(i);
      sizes.check("`" + wanted.name + "` has size " + std::to_string(size) + place, size, wanted.shape[i]);
    }
  }
  for (const Condition& condition : conditions) condition.require(given);
}

}  // namespace runner
