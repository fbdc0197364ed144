#include "text_printer.hpp"

#include <iostream>
#include <string_view>
#include <utility>

#include "fault.hpp"

namespace runner {

void TextPrinter::print(const Tokens& tokens, bool is_last) {
  if (!is_last && tokenizer_.is_open(tokens.back())) return;
  constexpr std::string_view incomplete = "\xEF\xBF\xBD";  // U+FFFD, which the next token may complete.
  // All tokens again: what a decoder returns for one depends on those before it.
  std::string text = tokenizer_.text(tokens);
  const auto ends_incomplete = [&] {
    return text.size() >= incomplete.size() &&
           text.compare(text.size() - incomplete.size(), incomplete.size(), incomplete) == 0;
  };
  while (!is_last && ends_incomplete()) text.resize(text.size() - incomplete.size());
  const bool is_longer = text.compare(0, printed_.size(), printed_) == 0;
  if (!is_longer && is_last) throw Fault("the decoder of the tokenizer changes text that it returned before");
  if (!is_longer) return;
  std::cout << std::string_view(text).substr(printed_.size()) << std::flush;
  printed_ = std::move(text);
}

}  // namespace runner
