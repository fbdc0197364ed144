#include "file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "fault.hpp"

namespace runner {
namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) throw Fault(path_.string() + ": " + reason());
  struct stat found{};
  if (::fstat(descriptor_, &found) != 0 || !S_ISREG(found.st_mode)) {
    ::close(descriptor_);
    throw Fault(path_.string() + ": not a regular file");
  }
  size_ = found.st_size;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::int64_t offset, void* to, std::int64_t count) const {
  auto* place = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, place, static_cast<std::size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Fault(path_.string() + ": " + reason());
    if (got == 0) throw Fault(path_.string() + ": it ends at byte " + std::to_string(offset));
    place += got;
    offset += got;
    count -= got;
  }
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  const std::string name =
      "." + path.filename().string().substr(0, 200) + "." + std::to_string(::getpid()) + ".tmp";
  return path.parent_path() / name;
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail();
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* from, std::int64_t count) {
  const auto* place = static_cast<const char*>(from);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, place, static_cast<std::size_t>(count));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail();
    place += put;
    count -= put;
  }
}

void OutputFile::commit() {
  if (::fsync(descriptor_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
  ::close(descriptor_);
  descriptor_ = -1;
}

void OutputFile::fail() const { throw Fault("cannot write " + path_.string() + ": " + reason()); }

}  // namespace runner
