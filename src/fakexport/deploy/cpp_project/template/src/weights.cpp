#include "weights.hpp"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint.hpp"
#include "fault.hpp"
#include "safetensors.hpp"

namespace runner {
namespace {

namespace fs = std::filesystem;

constexpr const char* owner = "fakexport.program";

// Returns the names under which the checkpoint contains a weight, or none if it is missing. Throws Fault if
// an entry has a different dtype or shape than the program expects.
std::vector<std::string> names_in(const Checkpoint& checkpoint, const Weight& weight) {
  std::vector<std::string> names{weight.name}, found;
  names.insert(names.end(), weight.aliases.begin(), weight.aliases.end());
  for (const std::string& name : names) {
    const auto holder = checkpoint.holders().find(name);
    if (holder == checkpoint.holders().end()) continue;
    const SafetensorsFile& file = *holder->second;
    const SafetensorsFile::Entry& entry = file.entries().at(name);
    const std::string has = kind(std::string(entry.dtype->name), entry.shape);
    const std::string takes = kind(weight.dtype, weight.shape);
    if (has != takes) {
      throw Fault(file.path().string() + ": the weight " + in_quotes(name) + " is " + has +
                  ", but the program expects " + takes);
    }
    found.push_back(name);
  }
  return found;
}

at::Tensor read_weight(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  const auto read = [&](const std::string& name) { return checkpoint.holders().at(name)->tensor(name); };
  const at::Tensor tensor = read(names[0]);
  for (std::size_t i = 1; i < names.size(); ++i) {
    const at::Tensor other = read(names[i]);
    if (std::memcmp(tensor.const_data_ptr(), other.const_data_ptr(), tensor.nbytes()) != 0) {
      throw Fault(checkpoint.path().string() + ": " + in_quotes(names[0]) + " and " + in_quotes(names[i]) +
                  " differ, but are a single weight of the program");
    }
  }
  return tensor;
}

// Returns the unexpected keys: entries that the program does not use.
std::vector<std::string> others_in(const Checkpoint& checkpoint, const PackageDescription& description) {
  std::set<std::string> known(description.unread.begin(), description.unread.end());
  for (const Weight& weight : description.weights) {
    known.insert(weight.name);
    known.insert(weight.aliases.begin(), weight.aliases.end());
  }
  std::vector<std::string> others;
  for (const auto& [name, holder] : checkpoint.holders()) {
    if (!known.count(name)) others.push_back(name);
  }
  return others;
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  std::error_code fault;  // If a file is missing, the files are not the same.
  return fs::equivalent(one, other, fault);
}

// Throws Fault if the weights file belongs to a different package, for example after an interrupted write.
void check_owner(const Checkpoint& checkpoint, const PackageDescription& description,
                 const fs::path& package) {
  const auto found = checkpoint.metadata().find(owner);
  if (found != checkpoint.metadata().end() && found->second != description.program_id) {
    throw Fault(checkpoint.path().string() + " was written for a different " + package.filename().string() +
                ": compile again, or rename it to use it as a checkpoint");
  }
}

// Returns the first names as text, and the number of further names.
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 3;
  std::string text = in_quotes(names[0]);
  for (std::size_t i = 1; i < std::min(names.size(), shown); ++i) text += ", " + in_quotes(names[i]);
  return names.size() > shown ? text + " and " + std::to_string(names.size() - shown) + " more" : text;
}

// Returns the error for missing weights. If there are unexpected keys, it says how to convert the checkpoint.
Fault missing_weights(const fs::path& path, const std::vector<std::string>& missing,
                      const std::vector<std::string>& others) {
  std::string text = path.string() + ": ";
  if (missing.size() == 1) {
    text += "the weight " + in_quotes(missing[0]) + " is missing";
  } else {
    text += std::to_string(missing.size()) + " weights are missing: " + first_of(missing);
  }
  if (!others.empty()) {
    text += "; unexpected keys: " + first_of(others) +
            ": if these are the weights under other names, `fakexport compile PROGRAM CHECKPOINT --to aoti "
            "--weights beside -o PACKAGE` writes them under the program's names";
  }
  return Fault(text);
}

}  // namespace

FoundWeights read_weights(const PackageDescription& description, const fs::path& package,
                          const std::optional<fs::path>& given, const TensorsByName& known) {
  const fs::path beside = fs::path(package).replace_extension(".safetensors");
  const Checkpoint checkpoint(given.value_or(beside));
  if (is_same_file(checkpoint.path(), beside)) check_owner(checkpoint, description, package);
  std::map<std::string, std::vector<std::string>> names;
  for (const Weight& weight : description.weights) names.emplace(weight.name, names_in(checkpoint, weight));
  std::vector<std::string> missing;
  for (const auto& [name, entries] : names) {
    if (entries.empty()) missing.push_back(name);
  }
  FoundWeights found{checkpoint.path(), {}, others_in(checkpoint, description)};
  if (!missing.empty()) throw missing_weights(checkpoint.path(), missing, found.others);
  for (const auto& [name, entries] : names) {
    const auto seen = known.find(name);
    found.weights.emplace(name, seen != known.end() ? seen->second : read_weight(checkpoint, entries));
  }
  return found;
}

TensorsByName read_constants(const fs::path& package, const PackageDescription& description) {
  const std::string folder = description.codes.size() > 1 ? description.code + "/" : "";
  const std::string record = "data/fakexport/" + folder + "constants.safetensors";
  std::int64_t begin = 0, size = 0;
  try {
    caffe2::serialize::PyTorchStreamReader reader(package.string());
    if (!reader.hasRecord(record)) return {};
    begin = static_cast<std::int64_t>(reader.getRecordOffset(record));
    size = static_cast<std::int64_t>(reader.getRecordSize(record));
  } catch (const std::exception& error) {
    throw Fault(package.string() + " cannot be read: " + first_line(error));
  }
  const SafetensorsFile file(package, begin, size);
  TensorsByName constants;
  for (const auto& [name, entry] : file.entries()) constants.emplace(name, file.tensor(name));
  return constants;
}

}  // namespace runner
