#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// A strict reader of JSON (RFC 8259) for untrusted text.
namespace runner::json {

class Value;
struct Member;

using Array = std::vector<Value>;
using Object = std::vector<Member>;  // In the order in which they appear in the text. Names are unique.

class Value {
 public:
  using Held = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;

  explicit Value(Held held);
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(held_); }
  bool is_object() const { return std::holds_alternative<Object>(held_); }
  bool is_boolean() const { return std::holds_alternative<bool>(held_); }
  bool is_real() const { return std::holds_alternative<double>(held_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(held_); }

  // Each throws Fault if the value has a different type.
  bool boolean() const;
  std::int64_t integer() const;
  double real() const;
  const std::string& text() const;
  const Array& array() const;
  const Object& object() const;

  // Returns the member of this name. Throws Fault if this is not an object, or has no such member.
  const Value& at(std::string_view name) const;

 private:
  Held held_;
};

struct Member {
  std::string name;
  Value value;
};

// Parses the whole text as one value. Throws Fault, with the reason and the byte, for invalid JSON or UTF-8,
// integers beyond 64 bits, duplicate names, more than 64 levels, and more than four million values.
Value parse(std::string_view text);

// Returns the text as a JSON string, including the quotes.
std::string encoded(const std::string& text);

}  // namespace runner::json
