#include "tokenizer.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <tokenizers_c.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <string_view>

#include "fault.hpp"
#include "file.hpp"
#include "json.hpp"

namespace runner {
namespace {

constexpr std::int64_t most_bytes = 256 << 20;

std::string content_of(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() > most_bytes) throw Fault(path.string() + " is larger than 256 MiB");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  // Reject invalid UTF-8, which the library would replace with other characters.
  within(path.string(), [&] { json::parse(text); });
  return text;
}

void refuse_other_than_utf8(const std::string& prompt) {
  try {
    json::parse(json::encoded(prompt));
  } catch (const Fault&) {
    throw Fault("--prompt is not UTF-8");
  }
}

std::shared_ptr<void> opened(const std::string& content) {
  return {tokenizers_new_from_str(content.data(), content.size()), tokenizers_free};
}

Tokens encoded(void* handle, const std::string& text) {
  TokenizerEncodeResult found{};
  tokenizers_encode(handle, text.data(), text.size(), /*add_special_token=*/1, &found);
  const Tokens tokens(found.token_ids, found.token_ids + found.len);
  tokenizers_free_encode_results(&found, 1);
  return tokens;
}

// Runs `work` in a child process. Returns the library's message if it aborts the process, otherwise "".
std::string end_of(const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) throw Fault("cannot open a pipe");
  const pid_t child = ::fork();
  if (child < 0) throw Fault("cannot start a process");
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (got > 0) said.append(buffer, static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return {};
  constexpr std::string_view mark = "value: ";  // Rust: called `Result::unwrap()` on an `Err` value: ...
  const std::size_t at = said.find(mark);
  if (at == std::string::npos) return "the library ended the process";
  const std::size_t start = at + mark.size();
  return said.substr(start, said.find('\n', start) - start);
}

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& path, const std::vector<std::string>& texts) {
  const std::string content = content_of(path);
  for (const std::string& text : texts) refuse_other_than_utf8(text);
  // The library aborts the process on errors, so a child process tries the texts first.
  const std::string end = end_of([&] {
    const std::shared_ptr<void> handle = opened(content);
    for (const std::string& text : texts) encoded(handle.get(), text);
  });
  if (!end.empty()) throw Fault("tokenizers cannot use " + path.string() + ": " + end);
  handle_ = opened(content);
}

Tokens Tokenizer::tokens(const std::string& text) const { return encoded(handle_.get(), text); }

std::string Tokenizer::text(const Tokens& tokens) const {
  const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
  tokenizers_decode(handle_.get(), ids.data(), ids.size(), /*skip_special_token=*/1);
  const char* data = nullptr;
  std::size_t length = 0;
  tokenizers_get_decode_str(handle_.get(), &data, &length);
  return {data, length};
}

bool Tokenizer::is_open(std::int64_t token) const {
  const char* data = nullptr;
  std::size_t length = 0;
  tokenizers_id_to_token(handle_.get(), static_cast<std::uint32_t>(token), &data, &length);
  const std::string_view piece(data, length);
  return (length == 6 && piece.substr(0, 3) == "<0x" && piece.back() == '>') || text({token}).empty();
}

}  // namespace runner
