#pragma once

#include <string>

namespace runner {

// Replaces each control character, line break, direction mark and zero-width character with `?`, so that
// the text is safe to print on one line of a terminal.
std::string printable(const std::string& text);

}  // namespace runner
