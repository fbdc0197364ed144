#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "printable.hpp"

namespace runner {

// What is wrong with what the user gave, in one line. The program ends with exit code 2.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs a function; a fault in it is told with `where` before it.
template <typename Function>
auto within(const std::string& where, Function&& function) {
  try {
    return function();
  } catch (const Fault& fault) {
    throw Fault(where + ": " + fault.what());
  }
}

// What torch says in its first line; in the others it tells where in torch that was.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// A name as it stands in a message. It is printable from here on: what() of a fault ends at a null character.
inline std::string in_quotes(const std::string& name) {
  constexpr std::size_t most = 200;
  return "'" + printable(name.size() <= most ? name : name.substr(0, most) + "...") + "'";
}

}  // namespace runner
