#include "weights.hpp"

#include <set>
#include <string>

#include "fault.hpp"
#include "safetensors.hpp"

namespace runner {

TensorsByName read_weights(const PackageDescription& description, const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::set<std::string> wanted;
  for (const Weight& weight : description.weights) {
    wanted.insert(weight.name);
    const auto found = file.entries().find(weight.name);
    if (found == file.entries().end())
      throw Fault(path.string() + ": the weight " + in_quotes(weight.name) + " is missing");
    const std::string has = kind(std::string(found->second.dtype->name), found->second.shape);
    const std::string takes = kind(weight.dtype, weight.shape);
    if (has != takes) {
      throw Fault(path.string() + ": the weight " + in_quotes(weight.name) + " is " + has +
                  ", and the program takes " + takes);
    }
  }
  for (const auto& [name, entry] : file.entries()) {
    if (!wanted.count(name)) throw Fault(path.string() + ": the program has no weight " + in_quotes(name));
  }
  TensorsByName weights;
  for (const std::string& name : wanted) weights.emplace(name, file.tensor(name));
  return weights;
}

}  // namespace runner
