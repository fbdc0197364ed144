#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace runner {

// One file of a sharded checkpoint, with the names of the tensors that the index lists for it.
struct Shard {
  std::string file;  // Name of the file, in the folder of the index.
  std::set<std::string> tensors;
};

// Returns the shards of an index (`model.safetensors.index.json`), in the order of first mention. Throws
// Fault if the file is not an index, or if a shard is not an existing .safetensors file in the folder of the
// index. Symbolic links to files are accepted, because the cache of huggingface_hub consists of them.
std::vector<Shard> read_index(const std::filesystem::path& path);

}  // namespace runner
