#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "file.hpp"
#include "tensor.hpp"

namespace runner {

// A .safetensors file. Opening it reads only the header, and throws Fault if a tensor exceeds the file or
// overlaps another one, or if some bytes belong to no tensor.
class SafetensorsFile {
 public:
  struct Entry {
    const Dtype* dtype;
    Shape shape;
    std::int64_t begin;  // Offset in the file in bytes.
    std::int64_t size;   // Size in bytes.
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  // Opens the part of a larger file with `size` bytes from `begin`.
  SafetensorsFile(const std::filesystem::path& path, std::int64_t begin, std::int64_t size);

  const std::filesystem::path& path() const { return file_.path(); }

  const std::map<std::string, Entry>& entries() const { return entries_; }

  // The metadata of the file, by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads a tensor into new memory. The name must be one of the entries.
  at::Tensor tensor(const std::string& name) const;

 private:
  void read(std::int64_t begin, std::int64_t size);
  void read_header(const std::string& text, std::int64_t start);
  void check_layout(std::int64_t start, std::int64_t end_of_file) const;

  InputFile file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes tensors to a file, atomically. Names must be unique.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace runner
