#include "shard_index.hpp"

#include <cstdint>
#include <map>
#include <system_error>

#include "fault.hpp"
#include "file.hpp"
#include "json.hpp"
#include "printable.hpp"

namespace runner {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_bytes = 100'000'000;

json::Value read(const InputFile& file) {
  if (file.size() > most_bytes) throw Fault("it has more than 100,000,000 bytes");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  return json::parse(text);
}

const json::Object& weight_map(const json::Value& index) {
  for (const json::Member& member : index.object()) {
    if (member.name == "weight_map" && member.value.is_object() && !member.value.object().empty())
      return member.value.object();
  }
  throw Fault("it has no weight_map");
}

void check_shard(const fs::path& folder, const std::string& file) {
  if (printable(file) != file || fs::path(file).extension() != ".safetensors")
    throw Fault(in_quotes(file) + " is not a valid shard name (.safetensors)");
  if (file[0] == '.' || file.find_first_of("/\\:") != std::string::npos)
    throw Fault("the shard " + in_quotes(file) + " is not in the folder of the index");
  std::error_code fault;  // A file that cannot be inspected counts as missing.
  if (!fs::is_regular_file(folder / file, fault))
    throw Fault("the shard " + in_quotes(file) + " is missing");
}

}  // namespace

std::vector<Shard> read_index(const fs::path& path) {
  const InputFile opened(path);
  return within(path.string() + " is not a valid shard index", [&] {
    const json::Value index = read(opened);
    std::vector<Shard> shards;
    std::map<std::string, std::size_t> places;
    for (const json::Member& member : weight_map(index)) {
      const std::string file = within(in_quotes(member.name), [&] { return member.value.text(); });
      const auto [place, is_new] = places.emplace(file, shards.size());
      if (is_new) {
        check_shard(path.parent_path(), file);
        shards.push_back({file, {}});
      }
      shards[place->second].tensors.insert(member.name);
    }
    return shards;
  });
}

}  // namespace runner
