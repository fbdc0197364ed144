#include "weights.hpp"

#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "fault.hpp"
#include "safetensors.hpp"

namespace runner {
namespace {

namespace fs = std::filesystem;

constexpr const char* owner = "fakexport.program";
constexpr const char* constants_record = "data/fakexport/constants.safetensors";

// The names under which the file has the weight. All entries are held against what the program takes.
std::vector<std::string> names_in(const SafetensorsFile& file, const Weight& weight) {
  std::vector<std::string> names{weight.name}, found;
  names.insert(names.end(), weight.aliases.begin(), weight.aliases.end());
  for (const std::string& name : names) {
    const auto entry = file.entries().find(name);
    if (entry == file.entries().end()) continue;
    const std::string has = kind(std::string(entry->second.dtype->name), entry->second.shape);
    const std::string takes = kind(weight.dtype, weight.shape);
    if (has != takes) {
      throw Fault("the weight " + in_quotes(name) + " is " + has + ", and the program takes " + takes);
    }
    found.push_back(name);
  }
  if (found.empty()) throw Fault("the weight " + in_quotes(weight.name) + " is missing");
  return found;
}

at::Tensor read_weight(const SafetensorsFile& file, const std::vector<std::string>& names) {
  const at::Tensor tensor = file.tensor(names[0]);
  for (std::size_t i = 1; i < names.size(); ++i) {
    const at::Tensor other = file.tensor(names[i]);
    if (std::memcmp(tensor.const_data_ptr(), other.const_data_ptr(), tensor.nbytes()) != 0) {
      throw Fault(in_quotes(names[0]) + " and " + in_quotes(names[i]) +
                  " differ, and are one weight of the program");
    }
  }
  return tensor;
}

// Entries of which the program knows nothing.
std::vector<std::string> others_in(const SafetensorsFile& file, const PackageDescription& description) {
  std::set<std::string> known(description.unread.begin(), description.unread.end());
  for (const Weight& weight : description.weights) {
    known.insert(weight.name);
    known.insert(weight.aliases.begin(), weight.aliases.end());
  }
  std::vector<std::string> others;
  for (const auto& [name, entry] : file.entries()) {
    if (!known.count(name)) others.push_back(name);
  }
  return others;
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  std::error_code fault;  // One that is not there is no other.
  return fs::equivalent(one, other, fault);
}

// Package and weights are written one after the other: an interruption leaves one of them as it was before.
void check_owner(const SafetensorsFile& file, const PackageDescription& description, const fs::path& path,
                 const fs::path& package) {
  const auto found = file.metadata().find(owner);
  if (found != file.metadata().end() && found->second != description.program_id) {
    throw Fault(path.string() + " was written with another " + package.filename().string() +
                " than this one: compile again, or give it another name if it is to be a checkpoint");
  }
}

}  // namespace

FoundWeights read_weights(const PackageDescription& description, const fs::path& package,
                          const std::optional<fs::path>& checkpoint) {
  const fs::path beside = fs::path(package).replace_extension(".safetensors");
  const fs::path path = checkpoint.value_or(beside);
  const SafetensorsFile file(path);
  if (!checkpoint || is_same_file(*checkpoint, beside)) check_owner(file, description, path, package);
  return within(path.string(), [&] {
    std::map<std::string, std::vector<std::string>> names;
    for (const Weight& weight : description.weights) names.emplace(weight.name, names_in(file, weight));
    FoundWeights found{path, {}, others_in(file, description)};
    for (const auto& [name, entries] : names) found.weights.emplace(name, read_weight(file, entries));
    return found;
  });
}

TensorsByName read_constants(const fs::path& package) {
  std::int64_t begin = 0, size = 0;
  try {
    caffe2::serialize::PyTorchStreamReader reader(package.string());
    if (!reader.hasRecord(constants_record)) return {};
    begin = static_cast<std::int64_t>(reader.getRecordOffset(constants_record));
    size = static_cast<std::int64_t>(reader.getRecordSize(constants_record));
  } catch (const std::exception& error) {
    throw Fault(package.string() + " cannot be read: " + first_line(error));
  }
  const SafetensorsFile file(package, begin, size);
  TensorsByName constants;
  for (const auto& [name, entry] : file.entries()) constants.emplace(name, file.tensor(name));
  return constants;
}

}  // namespace runner
