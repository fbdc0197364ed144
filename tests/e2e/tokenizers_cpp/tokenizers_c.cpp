// Each handle is a Python process, which gets requests on one pipe and answers on another.

#include "tokenizers_c.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

struct Server {
  pid_t process;
  std::FILE *requests, *answers;
  std::string decoded, piece;

  // A header with the length of the body, then the body; the answer has the same form. As in Rust, an error
  // ends the process.
  std::string answer(const std::string& request, const std::string& body) {
    std::fprintf(requests, "%s %zu\n", request.c_str(), body.size());
    std::fwrite(body.data(), 1, body.size(), requests);
    std::fflush(requests);
    std::size_t length = 0;
    if (std::fscanf(answers, "%zu", &length) != 1 || std::fgetc(answers) != '\n') std::abort();
    std::string found(length, '\0');
    if (std::fread(found.data(), 1, length, answers) != length) std::abort();
    return found;
  }
};

}  // namespace

extern "C" {

TokenizerHandle tokenizers_new_from_str(const char* json, std::size_t len) {
  int to[2], from[2];
  if (::pipe(to) != 0 || ::pipe(from) != 0) std::abort();
  const pid_t process = ::fork();
  if (process == 0) {
    ::dup2(to[0], STDIN_FILENO);
    ::dup2(from[1], STDOUT_FILENO);
    for (const int end : {to[0], to[1], from[0], from[1]}) ::close(end);
    ::execl(PYTHON, PYTHON, SERVER, nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  auto* server = new Server{process, ::fdopen(to[1], "w"), ::fdopen(from[0], "r"), {}, {}};
  server->answer("open 0", {json, len});
  return server;
}

void tokenizers_encode(TokenizerHandle handle, const char* data, std::size_t len, int add_special_token,
                       TokenizerEncodeResult* result) {
  const std::string request = "encode " + std::to_string(add_special_token);
  std::istringstream ids(static_cast<Server*>(handle)->answer(request, {data, len}));
  ids >> result->len;
  result->token_ids = new int[result->len];
  for (std::size_t i = 0; i < result->len; ++i) ids >> result->token_ids[i];
}

void tokenizers_free_encode_results(TokenizerEncodeResult* results, std::size_t num_seqs) {
  for (std::size_t i = 0; i < num_seqs; ++i) delete[] results[i].token_ids;
}

void tokenizers_decode(TokenizerHandle handle, const std::uint32_t* data, std::size_t len,
                       int skip_special_token) {
  std::string ids;
  for (std::size_t i = 0; i < len; ++i) ids += std::to_string(data[i]) + " ";
  auto* server = static_cast<Server*>(handle);
  server->decoded = server->answer("decode " + std::to_string(skip_special_token), ids);
}

void tokenizers_get_decode_str(TokenizerHandle handle, const char** data, std::size_t* len) {
  const auto* server = static_cast<Server*>(handle);
  *data = server->decoded.data();
  *len = server->decoded.size();
}

void tokenizers_id_to_token(TokenizerHandle handle, std::uint32_t id, const char** data, std::size_t* len) {
  auto* server = static_cast<Server*>(handle);
  server->piece = server->answer("piece 0", std::to_string(id));
  *data = server->piece.data();
  *len = server->piece.size();
}

void tokenizers_free(TokenizerHandle handle) {
  auto* server = static_cast<Server*>(handle);
  std::fclose(server->requests);
  std::fclose(server->answers);
  ::waitpid(server->process, nullptr, 0);
  delete server;
}
}
