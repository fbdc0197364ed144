#include "printable.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace runner {
namespace {

// A range of characters, encoded as UTF-8. Comparing the bytes is the same as comparing the characters.
struct Range {
  std::string_view first, last;

  bool begins(std::string_view text) const {
    const std::string_view start = text.substr(0, first.size());
    return start.size() == first.size() && first <= start && start <= last;
  }
};

constexpr Range unprintable[] = {
    {{"\0", 1}, "\x1F"},               // U+0000 to U+001F
    {"\x7F", "\x7F"},                  // U+007F
    {"\xC2\x80", "\xC2\x9F"},          // U+0080 to U+009F: terminals execute these control characters too
    {"\xE2\x80\x8B", "\xE2\x80\x8F"},  // U+200B to U+200F
    {"\xE2\x80\xA8", "\xE2\x80\xAE"},  // U+2028 to U+202E
    {"\xE2\x81\xA0", "\xE2\x81\xAF"},  // U+2060 to U+206F
    {"\xEF\xBB\xBF", "\xEF\xBB\xBF"},  // U+FEFF
};

}  // namespace

std::string printable(const std::string& text) {
  std::string found;
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto range = std::find_if(std::begin(unprintable), std::end(unprintable),
                                    [&](const Range& range) { return range.begins(rest); });
    const bool is_printable = range == std::end(unprintable);
    found += is_printable ? rest[0] : '?';
    rest.remove_prefix(is_printable ? 1 : range->first.size());
  }
  return found;
}

}  // namespace runner
