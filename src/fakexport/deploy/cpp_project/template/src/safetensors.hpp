#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "file.hpp"
#include "tensor.hpp"

namespace runner {

// A .safetensors file whose header has been checked: every tensor lies in the file, none overlaps another, no
// byte is left over. Throws Fault else. Nothing of the tensors is read before they are asked for.
class SafetensorsFile {
 public:
  struct Entry {
    const Dtype* dtype;
    Shape shape;
    std::int64_t begin;  // In the file, in bytes.
    std::int64_t size;   // In bytes.
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  // One that lies in a larger file: `size` bytes from `begin`.
  SafetensorsFile(const std::filesystem::path& path, std::int64_t begin, std::int64_t size);

  const std::filesystem::path& path() const { return file_.path(); }

  const std::map<std::string, Entry>& entries() const { return entries_; }

  // What the file says of itself, by name.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // In memory of its own; the name must be one of the entries.
  at::Tensor tensor(const std::string& name) const;

 private:
  void read(std::int64_t begin, std::int64_t size);
  void read_header(const std::string& text, std::int64_t start);
  void check_layout(std::int64_t start, std::int64_t end_of_file) const;

  InputFile file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes the tensors as a file that is there as a whole or not at all. Names must differ.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace runner
