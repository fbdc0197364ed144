#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// A strict reader of JSON (RFC 8259) for text that nobody vouches for.
namespace runner::json {

class Value;
struct Member;

using Array = std::vector<Value>;
using Object = std::vector<Member>;  // In the order of the text; no name occurs twice.

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

  // Each throws Fault where the value is something else.
  bool boolean() const;
  std::int64_t integer() const;
  double real() const;
  const std::string& text() const;
  const Array& array() const;
  const Object& object() const;

  // The member of this name; throws Fault where this is no object, or has no such member.
  const Value& at(std::string_view name) const;

 private:
  Held held_;
};

struct Member {
  std::string name;
  Value value;
};

// Reads the whole text as one value. Integers beyond 64 bits, names that occur twice, text that is no UTF-8,
// more than 64 levels and more than four million values are refused: Fault says what and at which byte.
Value parse(std::string_view text);

// The text as a JSON string, quotes included.
std::string encoded(const std::string& text);

}  // namespace runner::json
