#pragma once

#include <string>

namespace runner {

// The text in one line that a terminal shows as it is: `?` stands for each control character, end of a line,
// mark of direction, and character without width. Text that has none of these is given back as it is.
std::string printable(const std::string& text);

}  // namespace runner
