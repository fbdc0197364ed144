#include "condition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <variant>

#include "fault.hpp"

namespace runner {
namespace {

using Number = std::variant<std::int64_t, double>;
using Numbers = std::vector<Number>;

// Thrown if an expression has no value in Python either, or if the value exceeds 64 bits.
struct NoValue {};

bool is_integer(const Number& number) { return std::holds_alternative<std::int64_t>(number); }

double real(const Number& number) {
  return is_integer(number) ? static_cast<double>(std::get<std::int64_t>(number)) : std::get<double>(number);
}

// Converts a number to compare it without rounding, which requires a long double with a 64-bit mantissa.
long double exact(const Number& number) {
  if (is_integer(number)) return static_cast<long double>(std::get<std::int64_t>(number));
  return std::get<double>(number);
}

std::int64_t whole(const Number& number) {
  if (!is_integer(number)) throw NoValue();
  return std::get<std::int64_t>(number);
}

bool truth(const Number& number) { return exact(number) != 0; }

Number finite(double value) {
  if (!std::isfinite(value)) throw NoValue();
  return value;
}

Number rounded(double value) {
  constexpr double beyond = 9223372036854775808.0;  // 2**63
  if (!(value >= -beyond && value < beyond)) throw NoValue();
  return static_cast<std::int64_t>(value);
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t found = 0;
  if (__builtin_add_overflow(a, b, &found)) throw NoValue();
  return found;
}

std::int64_t difference(std::int64_t a, std::int64_t b) {
  std::int64_t found = 0;
  if (__builtin_sub_overflow(a, b, &found)) throw NoValue();
  return found;
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t found = 0;
  if (__builtin_mul_overflow(a, b, &found)) throw NoValue();
  return found;
}

// As in Python, quotients are rounded down, and a remainder has the sign of the divisor.
std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1)) throw NoValue();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t remainder(std::int64_t a, std::int64_t b) {
  if (b == 0) throw NoValue();
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_remainder(double a, double b) {
  if (b == 0) throw NoValue();
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Number power(const Number& base, const Number& exponent) {
  if (std::abs(real(exponent)) > 64) throw NoValue();
  if (is_integer(base) && is_integer(exponent) && whole(exponent) >= 0) {
    std::int64_t found = 1;
    for (std::int64_t i = 0; i < whole(exponent); ++i) found = product(found, whole(base));
    return found;
  }
  return finite(std::pow(real(base), real(exponent)));
}

std::int64_t shifted(std::int64_t value, std::int64_t places) {
  if (places < 0 || places > 62) throw NoValue();
  return product(value, std::int64_t{1} << places);
}

std::int64_t shifted_back(std::int64_t value, std::int64_t places) {
  if (places < 0) throw NoValue();
  return places > 62 ? (value < 0 ? -1 : 0) : floor_quotient(value, std::int64_t{1} << places);
}

template <typename OfIntegers, typename OfReals>
Number arithmetic(const Number& a, const Number& b, OfIntegers of_integers, OfReals of_reals) {
  if (is_integer(a) && is_integer(b)) return of_integers(whole(a), whole(b));
  return finite(of_reals(real(a), real(b)));
}

Number plus(const Number& a, const Number& b) {
  return arithmetic(a, b, sum, [](double x, double y) { return x + y; });
}

Number minus(const Number& a, const Number& b) {
  return arithmetic(a, b, difference, [](double x, double y) { return x - y; });
}

Number times(const Number& a, const Number& b) {
  return arithmetic(a, b, product, [](double x, double y) { return x * y; });
}

Number divided(const Number& a, const Number& b) {
  if (real(b) == 0) throw NoValue();
  return finite(real(a) / real(b));
}

Number floor_divided(const Number& a, const Number& b) {
  return arithmetic(a, b, floor_quotient, [](double x, double y) {
    if (y == 0) throw NoValue();
    return std::floor(x / y);
  });
}

Number modulo(const Number& a, const Number& b) { return arithmetic(a, b, remainder, floor_remainder); }

Number boolean(bool value) { return static_cast<std::int64_t>(value); }

using Binary = Number (*)(const Number&, const Number&);

const std::map<std::string, Binary>& binary() {
  using N = const Number&;
  static const std::map<std::string, Binary> table{
      {"-", minus},
      {"/", divided},
      {"//", floor_divided},
      {"%", modulo},
      {"**", power},
      {"<", [](N a, N b) { return boolean(exact(a) < exact(b)); }},
      {"<=", [](N a, N b) { return boolean(exact(a) <= exact(b)); }},
      {">", [](N a, N b) { return boolean(exact(a) > exact(b)); }},
      {">=", [](N a, N b) { return boolean(exact(a) >= exact(b)); }},
      {"==", [](N a, N b) { return boolean(exact(a) == exact(b)); }},
      {"!=", [](N a, N b) { return boolean(exact(a) != exact(b)); }},
      {"&", [](N a, N b) -> Number { return whole(a) & whole(b); }},
      {"|", [](N a, N b) -> Number { return whole(a) | whole(b); }},
      {"^", [](N a, N b) -> Number { return whole(a) ^ whole(b); }},
      {"<<", [](N a, N b) -> Number { return shifted(whole(a), whole(b)); }},
      {">>", [](N a, N b) -> Number { return shifted_back(whole(a), whole(b)); }},
  };
  return table;
}

// Operations with two or more operands, evaluated from left to right.
const std::map<std::string, Binary>& chained() {
  using N = const Number&;
  static const std::map<std::string, Binary> table{
      {"+", plus},
      {"*", times},
      {"min", [](N a, N b) { return exact(b) < exact(a) ? b : a; }},
      {"max", [](N a, N b) { return exact(b) > exact(a) ? b : a; }},
  };
  return table;
}

using Unary = Number (*)(const Number&);

template <double (*function)(double)>
Number of_real(const Number& a) {
  return finite(function(real(a)));
}

template <double (*function)(double)>
Number to_integer(const Number& a) {
  return is_integer(a) ? a : rounded(function(real(a)));
}

const std::map<std::string, Unary>& unary() {
  using N = const Number&;
  static const std::map<std::string, Unary> table{
      {"neg", [](N a) { return minus(Number(std::int64_t{0}), a); }},
      {"not", [](N a) { return boolean(!truth(a)); }},
      {"abs", [](N a) { return exact(a) < 0 ? minus(Number(std::int64_t{0}), a) : a; }},
      {"float", [](N a) -> Number { return real(a); }},
      {"int", to_integer<std::trunc>},
      {"trunc", to_integer<std::trunc>},
      {"floor", to_integer<std::floor>},
      {"ceil", to_integer<std::ceil>},
      {"round", to_integer<std::nearbyint>},  // As in Python, halves are rounded to the even number.
      {"sqrt", of_real<std::sqrt>},
      {"exp", of_real<std::exp>},
      {"log", of_real<std::log>},
      {"log2", of_real<std::log2>},
      {"sin", of_real<std::sin>},
      {"cos", of_real<std::cos>},
      {"tan", of_real<std::tan>},
      {"asin", of_real<std::asin>},
      {"acos", of_real<std::acos>},
      {"atan", of_real<std::atan>},
      {"sinh", of_real<std::sinh>},
      {"cosh", of_real<std::cosh>},
      {"tanh", of_real<std::tanh>},
  };
  return table;
}

bool is_operation(const std::string& name, std::size_t operands) {
  if (name == "and" || name == "or" || chained().count(name)) return operands >= 2;
  if (name == "if") return operands == 3;
  return (operands == 2 && binary().count(name)) || (operands == 1 && unary().count(name));
}

using Property = bool (*)(const at::Tensor&);

// Properties of a tensor that are true or false.
const std::map<std::string, Property>& properties() {
  using T = const at::Tensor&;
  static const std::map<std::string, Property> table{
      {"contiguous", [](T tensor) { return tensor.is_contiguous(); }},
      {"channels_last", [](T tensor) { return tensor.is_contiguous(at::MemoryFormat::ChannelsLast); }},
      {"channels_last_3d", [](T tensor) { return tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d); }},
      {"requires_grad", [](T tensor) { return tensor.requires_grad(); }},
      {"is_leaf", [](T tensor) { return tensor.is_leaf(); }},
      {"is_view", [](T tensor) { return tensor.is_view(); }},
      {"is_inference", [](T tensor) { return tensor.is_inference(); }},
      {"is_conj", [](T tensor) { return tensor.is_conj(); }},
      {"is_neg", [](T tensor) { return tensor.is_neg(); }},
  };
  return table;
}

Expression::Kind question(const std::string& ask) {
  if (ask == "size") return Expression::Kind::size;
  if (ask == "stride") return Expression::Kind::stride;
  if (ask == "offset") return Expression::Kind::offset;
  if (ask == "value") return Expression::Kind::value;
  if (ask == "storage_bytes") return Expression::Kind::storage_bytes;
  if (ask == "storage") return Expression::Kind::storage;
  if (properties().count(ask)) return Expression::Kind::property;
  throw Fault("a condition reads the unknown property " + in_quotes(ask));
}

Expression expression(const json::Value& value) {
  Expression found;
  if (value.is_integer()) {
    found.integer = value.integer();
  } else if (value.is_boolean()) {
    found.integer = value.boolean();
  } else if (value.is_real()) {
    found.kind = Expression::Kind::real;
    found.real = value.real();
  } else if (value.is_object()) {
    found.kind = question(value.at("ask").text());
    found.name = value.at("input").text();
    found.asked = value.at("ask").text();
    found.dim = value.at("dim").integer();
  } else {
    const json::Array& parts = value.array();
    if (parts.empty()) throw Fault("an operation of a condition has no name");
    found.kind = Expression::Kind::operation;
    found.name = parts[0].text();
    for (std::size_t i = 1; i < parts.size(); ++i) found.operands.push_back(expression(parts[i]));
    if (!is_operation(found.name, found.operands.size())) {
      throw Fault("a condition has the operation " + in_quotes(found.name) + " with " +
                  std::to_string(found.operands.size()) + " operands, which this program does not support");
    }
  }
  return found;
}

Number answer(const Expression& asked, const TensorsByName& given) {
  const auto found = given.find(asked.name);
  if (found == given.end()) {
    throw Fault("a condition reads " + in_quotes(asked.name) + ", which is not an input");
  }
  const at::Tensor& tensor = found->second;
  const bool is_of_dim = asked.kind == Expression::Kind::size || asked.kind == Expression::Kind::stride;
  if (is_of_dim && (asked.dim < 0 || asked.dim >= tensor.dim())) {
    throw Fault("a condition reads dimension " + std::to_string(asked.dim) + " of " + in_quotes(asked.name) +
                ", which has fewer dimensions");
  }
  if (asked.kind == Expression::Kind::size) return tensor.size(asked.dim);
  if (asked.kind == Expression::Kind::stride) return tensor.stride(asked.dim);
  if (asked.kind == Expression::Kind::offset) return tensor.storage_offset();
  if (asked.kind == Expression::Kind::storage)
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(tensor.storage().unsafeGetStorageImpl()));
  if (asked.kind == Expression::Kind::storage_bytes) return static_cast<std::int64_t>(tensor.storage().nbytes());
  if (asked.kind == Expression::Kind::property) return boolean(properties().at(asked.asked)(tensor));
  if (tensor.numel() != 1) throw NoValue();
  if (tensor.is_floating_point()) return tensor.item<double>();
  return tensor.item<std::int64_t>();
}

Number evaluated(const Expression& part, const TensorsByName& given) {
  if (part.kind == Expression::Kind::integer) return part.integer;
  if (part.kind == Expression::Kind::real) return part.real;
  if (part.kind != Expression::Kind::operation) return answer(part, given);
  const auto holds = [&](const Expression& operand) { return truth(evaluated(operand, given)); };
  const std::vector<Expression>& parts = part.operands;
  if (part.name == "if") return evaluated(holds(parts[0]) ? parts[1] : parts[2], given);
  Number total = evaluated(parts[0], given);
  if (part.name == "and" || part.name == "or") {
    // The first operand that decides the result, otherwise the last.
    for (std::size_t i = 1; i < parts.size() && truth(total) == (part.name == "and"); ++i)
      total = evaluated(parts[i], given);
    return total;
  }
  if (parts.size() == 1) return unary().at(part.name)(total);
  const auto chain = chained().find(part.name);
  const Binary apply = chain != chained().end() ? chain->second : binary().at(part.name);
  for (std::size_t i = 1; i < parts.size(); ++i) total = apply(total, evaluated(parts[i], given));
  return total;
}

std::string text(const Number& number) {
  return is_integer(number) ? std::to_string(whole(number)) : std::to_string(real(number));
}

std::string told(const Expression& asked, const TensorsByName& given) {
  const std::string input = "`" + asked.name + "`", value = text(answer(asked, given));
  const std::string place = " in dimension " + std::to_string(asked.dim);
  if (asked.kind == Expression::Kind::size) return input + " has size " + value + place;
  if (asked.kind == Expression::Kind::stride) return input + " has stride " + value + place;
  if (asked.kind == Expression::Kind::offset) return input + " begins at element " + value + " of its storage";
  if (asked.kind == Expression::Kind::storage) return input + " has its storage at " + value;
  if (asked.kind == Expression::Kind::storage_bytes) return input + " has a storage of " + value + " bytes";
  if (asked.kind == Expression::Kind::property)
    return input + (value == "0" ? " lacks " : " has ") + "the property " + asked.asked;
  return input + " is " + value;
}

// Collects the input properties in an expression as text, each once, from left to right.
void collect(const Expression& part, const TensorsByName& given, std::vector<std::string>& found) {
  if (part.kind == Expression::Kind::operation) {
    for (const Expression& operand : part.operands) collect(operand, given, found);
  } else if (part.kind != Expression::Kind::integer && part.kind != Expression::Kind::real) {
    const std::string line = told(part, given);
    if (std::find(found.begin(), found.end(), line) == found.end()) found.push_back(line);
  }
}

}  // namespace

Condition Condition::of(const json::Value& value) {
  return {printable(value.at("text").text()), expression(value.at("check"))};
}

void Condition::require(const TensorsByName& given) const {
  try {
    if (truth(evaluated(check, given))) return;
  } catch (const NoValue&) {
  }
  std::vector<std::string> found;
  collect(check, given, found);
  std::string sizes;
  for (const std::string& line : found) sizes += (sizes.empty() ? "" : " and ") + line;
  throw Fault(sizes + ", but the program needs " + text);
}

}  // namespace runner
