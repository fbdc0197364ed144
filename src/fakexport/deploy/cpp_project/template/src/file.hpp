#pragma once

#include <cstdint>
#include <filesystem>

namespace runner {

// A regular file, opened for reading. System errors become a Fault that names the file.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // Reads `count` bytes from this offset. Throws Fault if the file has become too short.
  void read(std::int64_t offset, void* to, std::int64_t count) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

// A temporary file that `commit` renames to `path`. Without `commit`, it is deleted.
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

// Returns the path for a temporary file in the folder of `path`.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

}  // namespace runner
