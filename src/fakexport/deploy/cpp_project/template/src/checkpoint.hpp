#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>

#include "safetensors.hpp"

namespace runner {

// The tensors of one .safetensors file, or of all files of an index. Tensors are read on request only.
class Checkpoint {
 public:
  // Opens a .safetensors file, an index of such files (`*.safetensors.index.json`), or a folder with one of
  // these. Throws Fault if a file is invalid, if the files do not contain the tensors that the index lists,
  // or if it is unclear which file of the folder to read.
  explicit Checkpoint(const std::filesystem::path& given);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Path of the file or of the index.
  const std::filesystem::path& path() const { return path_; }

  // The file that contains a tensor, by the tensor's name.
  const std::map<std::string, const SafetensorsFile*>& holders() const { return holders_; }

  // The metadata of all files, by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  const SafetensorsFile& add(const std::filesystem::path& path);
  void add_shards();

  std::filesystem::path path_;
  std::deque<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsFile*> holders_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace runner
