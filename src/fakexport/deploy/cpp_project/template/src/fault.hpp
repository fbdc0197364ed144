#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "printable.hpp"

namespace runner {

// An error of the user or the environment, described in one line. The program then exits with code 2.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs a function. If it throws Fault, `where` is prepended to the message.
template <typename Function>
auto within(const std::string& where, Function&& function) {
  try {
    return function();
  } catch (const Fault& fault) {
    throw Fault(where + ": " + fault.what());
  }
}

// Returns the first line of a message. The other lines of torch's messages are a stack trace.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Quotes a name for a message. It is made printable here, because a null character would end the message.
inline std::string in_quotes(const std::string& name) {
  constexpr std::size_t most = 200;
  return "'" + printable(name.size() <= most ? name : name.substr(0, most) + "...") + "'";
}

}  // namespace runner
