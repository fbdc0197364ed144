#pragma once

#include <cstdint>
#include <filesystem>

namespace runner {

// A regular file, opened for reading. Every fault of the system is a Fault that names the file.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // Fills `count` bytes from this offset; a file that has become shorter meanwhile is a Fault.
  void read(std::int64_t offset, void* to, std::int64_t count) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

// A file that takes the place of `path` by `commit`, and leaves nothing behind without.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* from, std::int64_t count);
  void commit();

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

// A name beside `path` that nothing has.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

}  // namespace runner
