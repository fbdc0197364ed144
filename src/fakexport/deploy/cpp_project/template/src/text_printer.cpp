#include "text_printer.hpp"

#include <iostream>
#include <string_view>

#include "fault.hpp"

namespace runner {
namespace {

// Returns the text after the prefix `start`, or "" if the text does not have this prefix.
std::string_view after(const std::string& start, const std::string& text) {
  return text.compare(0, start.size(), start) == 0 ? std::string_view(text).substr(start.size())
                                                   : std::string_view();
}

bool is_complete(const std::string& text) {
  constexpr std::string_view incomplete = "\xEF\xBF\xBD";  // U+FFFD, which the next token may complete.
  return text.size() < incomplete.size() ||
         text.compare(text.size() - incomplete.size(), incomplete.size(), incomplete) != 0;
}

}  // namespace

void TextPrinter::print(const Tokens& tokens, bool is_last) {
  if (is_last) {
    const std::string text = tokenizer_.text(tokens);
    if (text.compare(0, printed_.size(), printed_) != 0) {
      throw Fault("the tokenizer decoded all tokens to a text that differs from the printed text");
    }
    std::cout << after(printed_, text) << std::flush;
    return;
  }
  if (tokenizer_.is_open(tokens.back())) return;
  const std::string text = tokenizer_.text({tokens.begin() + start_, tokens.end()});
  const std::string_view added = after(text_, text);
  if (added.empty() || !is_complete(text)) return;
  std::cout << added << std::flush;
  printed_ += added;
  start_ = end_;
  end_ = tokens.size();
  text_ = tokenizer_.text({tokens.begin() + start_, tokens.end()});
}

}  // namespace runner
