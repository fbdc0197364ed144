#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>

#include "safetensors.hpp"

namespace runner {

// The tensors of one .safetensors file, or of the files of an index. Throws Fault where a file is refused, where
// the files hold other tensors than the index says, and where a folder does not tell with which file to begin.
// Nothing of the tensors is read before they are asked for.
class Checkpoint {
 public:
  // A file of safetensors; an index of such files, `*.safetensors.index.json`; a folder with one of these.
  explicit Checkpoint(const std::filesystem::path& given);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // With which it begins: the file or the index.
  const std::filesystem::path& path() const { return path_; }

  // Which file holds a tensor, by the tensor's name.
  const std::map<std::string, const SafetensorsFile*>& holders() const { return holders_; }

  // What the files say of themselves, by name.
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
