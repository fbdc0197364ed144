#include "json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "fault.hpp"

namespace runner::json {

Value::Value(Held held) : held_(std::move(held)) {}
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

namespace {

template <typename T, typename Held>
const T& expect(const Held& held, const char* what) {
  if (const T* found = std::get_if<T>(&held)) return *found;
  throw Fault(std::string("expected ") + what);
}

constexpr int most_levels = 64;
constexpr std::size_t most_values = 4'000'000;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Value whole() {
    Value value = next(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Fault("not valid JSON: " + what + " at byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  void take(char wanted) {
    if (peek() != wanted || at_ == text_.size()) fail(std::string("expected '") + wanted + "'");
    ++at_;
  }

  bool takes(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Value next(int level) {
    if (level > most_levels) fail("more than 64 levels");
    if (++values_ > most_values) fail("more than 4,000,000 values");
    skip_space();
    switch (peek()) {
      case '{':
        return Value(object(level));
      case '[':
        return Value(array(level));
      case '"':
        return Value(string());
      case 't':
        if (takes("true")) return Value(true);
        break;
      case 'f':
        if (takes("false")) return Value(false);
        break;
      case 'n':
        if (takes("null")) return Value(nullptr);
        break;
      default:
        return number();
    }
    fail("an unknown word");
  }

  Object object(int level) {
    Object members;
    take('{');
    skip_space();
    if (peek() != '}') {
      while (true) {
        skip_space();
        std::string name = string();
        skip_space();
        take(':');
        members.push_back({std::move(name), next(level + 1)});
        skip_space();
        if (peek() != ',') break;
        ++at_;
      }
    }
    take('}');
    refuse_twice(members);
    return members;
  }

  void refuse_twice(const Object& members) const {
    std::vector<std::string_view> names;
    for (const Member& member : members) names.push_back(member.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end())
      fail("the name " + in_quotes(std::string(*twice)) + " occurs twice in the object");
  }

  Array array(int level) {
    Array values;
    take('[');
    skip_space();
    if (peek() != ']') {
      while (true) {
        values.push_back(next(level + 1));
        skip_space();
        if (peek() != ',') break;
        ++at_;
      }
    }
    take(']');
    return values;
  }

  void digits() {
    const std::size_t first = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == first) fail("expected a digit");
  }

  Value number() {
    const std::size_t first = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else if (peek() >= '1' && peek() <= '9') {
      digits();
    } else {
      fail("expected a value");
    }
    bool is_integer = true;
    if (peek() == '.') {
      is_integer = false;
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      is_integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const std::string spelt(text_.substr(first, at_ - first));
    if (is_integer) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(spelt.data(), spelt.data() + spelt.size(), value);
      if (error != std::errc()) fail("an integer of more than 64 bits");
      return Value(value);
    }
    const double value = std::strtod(spelt.c_str(), nullptr);
    if (!std::isfinite(value)) fail("a number beyond double precision");
    return Value(value);
  }

  std::string string() {
    std::string found;
    take('"');
    while (true) {
      if (at_ == text_.size()) fail("an unterminated string");
      const unsigned char c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < 0x20) fail("a control character in a string");
      if (c == '\\') {
        ++at_;
        append_utf8(found, escaped());
      } else if (c < 0x80) {
        found += text_[at_++];
      } else {
        append_utf8(found, utf8());
      }
    }
    ++at_;
    return found;
  }

  char32_t escaped() {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        return static_cast<char32_t>(c);
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        break;
      default:
        --at_;
        fail("an unknown escape");
    }
    const char32_t first = four_hex_digits();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || !takes("\\u")) fail("an incomplete surrogate pair");
    const char32_t second = four_hex_digits();
    if (second < 0xDC00 || second > 0xDFFF) fail("an incomplete surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  char32_t four_hex_digits() {
    const std::string_view digits = text_.substr(at_, 4);
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4)
      fail("expected four hex digits");
    at_ += 4;
    return value;
  }

  // A character of two to four bytes. Reject overlong forms, surrogates and code points above U+10FFFF.
  char32_t utf8() {
    const unsigned char lead = static_cast<unsigned char>(text_[at_]);
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    char32_t value = lead & (0x3F >> more);
    bool is_valid = lead >= 0xC2 && lead <= 0xF4 && text_.size() - at_ > static_cast<std::size_t>(more);
    for (int i = 1; is_valid && i <= more; ++i) {
      const unsigned char c = static_cast<unsigned char>(text_[at_ + i]);
      is_valid = (c & 0xC0) == 0x80;
      value = (value << 6) | (c & 0x3F);
    }
    constexpr char32_t least[] = {0, 0x80, 0x800, 0x10000};
    is_valid = is_valid && value >= least[more] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
    if (!is_valid) fail("bytes that are not UTF-8");
    at_ += more + 1;
    return value;
  }

  static void append_utf8(std::string& text, char32_t c) {
    if (c < 0x80) {
      text += static_cast<char>(c);
      return;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    text += static_cast<char>(lead[more] | (c >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

bool Value::boolean() const { return expect<bool>(held_, "true or false"); }
std::int64_t Value::integer() const { return expect<std::int64_t>(held_, "an integer"); }
double Value::real() const { return expect<double>(held_, "a number with a fraction"); }
const std::string& Value::text() const { return expect<std::string>(held_, "a string"); }
const Array& Value::array() const { return expect<Array>(held_, "a list"); }
const Object& Value::object() const { return expect<Object>(held_, "an object"); }

const Value& Value::at(std::string_view name) const {
  for (const Member& member : object()) {
    if (member.name == name) return member.value;
  }
  throw Fault("the field " + in_quotes(std::string(name)) + " is missing");
}

Value parse(std::string_view text) { return Parser(text).whole(); }

std::string encoded(const std::string& text) {
  constexpr const char* hex = "0123456789abcdef";
  std::string found = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      found += '\\';
      found += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      found += "\\u00";
      found += hex[c >> 4];
      found += hex[c & 15];
    } else {
      found += c;
    }
  }
  return found + "\"";
}

}  // namespace runner::json
