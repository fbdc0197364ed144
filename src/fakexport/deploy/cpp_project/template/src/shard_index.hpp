#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace runner {

// A file of a checkpoint in several files, with the names of the tensors that its index says it holds.
struct Shard {
  std::string file;  // In the folder of the index.
  std::set<std::string> tensors;
};

// The shards of an index (`model.safetensors.index.json`), in the order of first mention. Throws Fault where it
// is no index, where the name of a shard is not that of a .safetensors file in the folder of the index, and where
// there is no such file. A link to a file is one, as the hub's cache has them.
std::vector<Shard> read_index(const std::filesystem::path& path);

}  // namespace runner
