#include "checkpoint.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "fault.hpp"
#include "shard_index.hpp"

namespace runner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view index_end = ".index.json";
constexpr std::string_view safetensors = ".safetensors";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Returns the sorted names of the regular files in a folder, including symbolic links to regular files.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code fault;
  for (fs::directory_iterator at(folder, fault), end; !fault && at != end; at.increment(fault)) {
    std::error_code unreadable;
    if (at->is_regular_file(unreadable)) found.push_back(at->path().filename().string());
  }
  if (fault) throw Fault(folder.string() + ": " + fault.message());
  std::sort(found.begin(), found.end());
  return found;
}

// Returns the only file of the first form that exists in a folder. Throws Fault if there are several.
fs::path first_file(const fs::path& folder) {
  struct Form {
    std::string_view name;
    bool is_end;
  };
  constexpr Form forms[] = {{"model.safetensors", false},
                            {"model.safetensors.index.json", false},
                            {".safetensors.index.json", true},
                            {".safetensors", true}};
  const std::vector<std::string> files = files_in(folder);
  for (const Form& form : forms) {
    std::vector<std::string> found;
    std::copy_if(files.begin(), files.end(), std::back_inserter(found), [&](const std::string& file) {
      return form.is_end ? ends_with(file, form.name) : file == form.name;
    });
    if (found.size() == 1) return folder / found[0];
    if (found.size() > 1) {
      std::string names;
      for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 3); ++i) names += found[i] + ", ";
      throw Fault(folder.string() + " has " + std::to_string(found.size()) +
                  " files without an index: pass one of them: " + names + "...");
    }
  }
  throw Fault(folder.string() + " has no .safetensors file and no index of such files");
}

fs::path begin_of(const fs::path& given) {
  std::error_code fault;  // If the path does not exist, opening it reports the error.
  return fs::is_directory(given, fault) ? first_file(given) : given;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& given) : path_(begin_of(given)) {
  const std::string name = path_.filename().string();
  if (!ends_with(name, index_end)) {
    add(path_);
  } else if (name.find(safetensors) != std::string::npos) {
    add_shards();
  } else {
    throw Fault(path_.string() + " is not an index of .safetensors files");
  }
}

const SafetensorsFile& Checkpoint::add(const fs::path& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, entry] : file.entries()) {
    const auto [holder, is_new] = holders_.emplace(name, &file);
    if (!is_new) {
      throw Fault(path_.string() + ": both " + holder->second->path().filename().string() + " and " +
                  path.filename().string() + " contain " + in_quotes(name));
    }
  }
  metadata_.insert(file.metadata().begin(), file.metadata().end());
  return file;
}

void Checkpoint::add_shards() {
  for (const Shard& shard : read_index(path_)) {
    const SafetensorsFile& file = add(path_.parent_path() / shard.file);
    for (const std::string& name : shard.tensors) {
      if (!file.entries().count(name)) {
        throw Fault(path_.string() + ": " + in_quotes(name) + " is missing from " + shard.file +
                    ", where the index lists it");
      }
    }
    for (const auto& [name, entry] : file.entries()) {
      if (!shard.tensors.count(name)) {
        throw Fault(path_.string() + ": " + shard.file + " contains " + in_quotes(name) +
                    ", which the index does not list there");
      }
    }
  }
}

}  // namespace runner
