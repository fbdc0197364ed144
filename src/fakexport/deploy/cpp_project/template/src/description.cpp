#include "description.hpp"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <caffe2/serialize/inline_container.h>
#include <dlfcn.h>
#include <sys/utsname.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/version.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "fault.hpp"
#include "file.hpp"
#include "json.hpp"

namespace runner {
namespace {

constexpr const char* format = "fakexport.aoti/1";
constexpr std::string_view codes_folder = "data/aotinductor/";

std::vector<std::string> texts(const json::Value& value) {
  std::vector<std::string> found;
  for (const json::Value& text : value.array()) found.push_back(text.text());
  return found;
}

Shape integers(const json::Value& value) {
  Shape found;
  for (const json::Value& integer : value.array()) found.push_back(integer.integer());
  return found;
}

PackageDescription read(const json::Value& value) {
  const std::string& written = value.at("format").text();
  if (written != format) {
    throw Fault("its format is " + in_quotes(written) + ", but this program reads " + in_quotes(format));
  }
  PackageDescription found;
  found.signature = Signature::of(value.at("signature"));
  for (const json::Value& each : value.at("sizes").array()) {
    const json::Value& max = each.at("max");
    SizeRange range{each.at("input").text(), static_cast<std::size_t>(each.at("dim").integer()),
                    each.at("min").integer(), std::nullopt};
    if (!max.is_null()) range.max = max.integer();
    found.sizes.push_back(std::move(range));
  }
  found.device = value.at("device").text();
  found.torch_version = value.at("versions").at("torch").text();
  found.machine = value.at("machine").text();
  found.instructions = texts(value.at("instructions"));
  found.libraries_for = texts(value.at("libraries_for"));
  for (const json::Value& order : value.at("orders").array()) found.orders.push_back(integers(order));
  const json::Value& weights = value.at("weights");
  const std::string& place = weights.at("place").text();
  if (place != "inside" && place != "beside") {
    throw Fault("its weights have the unknown location " + in_quotes(place));
  }
  found.has_weights_beside = place == "beside";
  for (const json::Value& tensor : weights.at("tensors").array()) {
    found.weights.push_back({tensor.at("name").text(), tensor.at("dtype").text(),
                             integers(tensor.at("shape")), texts(tensor.at("aliases"))});
  }
  found.program_id = value.at("program_id").text();
  found.unread = texts(weights.at("unread"));
  return found;
}

void check_orders(const PackageDescription& description) {
  const std::vector<InputTensor>& inputs = description.signature.inputs;
  if (description.orders.size() != inputs.size()) throw Fault("its orders do not match the inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Shape sorted = description.orders[i], expected(inputs[i].shape.size());
    std::sort(sorted.begin(), sorted.end());
    std::iota(expected.begin(), expected.end(), 0);
    if (sorted != expected) throw Fault("its orders do not match the inputs");
  }
}

// Returns the compute capability of the first GPU, such as `sm_90`, or nothing without a GPU. The driver's
// functions are looked up by name, because CUDA's headers come only with the toolkit.
std::string gpu_architecture() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return "";
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto read = reinterpret_cast<int (*)(int*, int, int)>(::dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int major_attribute = 75, minor_attribute = 76;  // Of CUdevice_attribute.
  int device = 0, major = 0, minor = 0;
  if (!init || !get || !read || init(0) != 0 || get(&device, 0) != 0) return "";
  if (read(&major, major_attribute, device) != 0 || read(&minor, minor_attribute, device) != 0) return "";
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

// Returns the names of the codes in a package.
std::vector<std::string> code_names(const std::filesystem::path& package) {
  std::vector<std::string> found;
  caffe2::serialize::PyTorchStreamReader reader(package.string());
  for (const std::string& record : reader.getAllRecords()) {
    const std::size_t end = record.find('/', codes_folder.size());
    if (record.rfind(codes_folder, 0) != 0 || end == std::string::npos) continue;
    const std::string name = record.substr(codes_folder.size(), end - codes_folder.size());
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  if (found.empty()) throw std::runtime_error("it has no compiled code");
  return found;
}

// Returns the description of a code in a package.
PackageDescription described(const std::filesystem::path& package, std::vector<std::string> codes,
                             const std::string& code) {
  std::unordered_map<std::string, std::string> metadata;
  try {
    metadata = torch::inductor::AOTIModelPackageLoader::load_metadata_from_package(package.string(), code);
  } catch (const std::exception& error) {
    throw Fault(package.string() + " cannot be read: " + first_line(error));
  }
  const auto ours = metadata.find("fakexport");
  if (ours == metadata.end()) throw Fault(package.string() + " was not compiled by fakexport");
  return within(package.string() + ": its description", [&] {
    PackageDescription found = read(json::parse(ours->second));
    check_orders(found);
    found.codes = std::move(codes);
    found.code = code;
    return found;
  });
}

// Returns `sm_80 or sm_90`.
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " or ") + name;
  return text;
}

// Looks up `signal_ops.soft_clip.default` as `signal_ops::soft_clip` with an empty overload name.
bool is_registered_operator(const std::string& name) {
  const std::size_t first = name.find('.'), last = name.rfind('.');
  if (first == last) return false;
  const std::string overload = name.substr(last + 1);
  const c10::OperatorName wanted(name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
                                 overload == "default" ? "" : overload);
  return c10::Dispatcher::singleton().findSchema(wanted).has_value();
}

// Looks up `signal_ops::Polynomial` as `__torch__.torch.classes.signal_ops.Polynomial`.
bool is_registered_class(const std::string& name) {
  const std::size_t colons = name.find("::");
  const std::string path = name.substr(0, colons) + "." + name.substr(colons + 2);
  return torch::getCustomClass("__torch__.torch.classes." + path) != nullptr;
}

// Returns `2.13` for `2.13.0+cpu`.
std::string release(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

PackageDescription PackageDescription::of(const std::filesystem::path& package) {
  char start[2] = {};
  const InputFile file(package);
  if (file.size() > 2) file.read(0, start, 2);
  if (start[0] != 'P' || start[1] != 'K') throw Fault(package.string() + " is not a compiled package");
  std::vector<std::string> codes;
  try {
    codes = code_names(package);
  } catch (const std::exception& error) {
    throw Fault(package.string() + " cannot be read: " + first_line(error));
  }
  const std::string gpu = codes.size() > 1 ? gpu_architecture() : "";
  const std::string code = std::count(codes.begin(), codes.end(), gpu) ? gpu : codes[0];
  return described(package, std::move(codes), code);
}

std::string SizeRange::text() const {
  const std::string least = std::to_string(min);
  if (!max) return least + "..";
  return *max == min ? least : least + ".." + std::to_string(*max);
}

PackageDescription PackageDescription::for_sizes(const std::filesystem::path& package,
                                                 const TensorsByName& inputs) const {
  if (sizes.empty() || codes.size() == 1) return *this;
  std::vector<PackageDescription> all;
  for (const std::string& name : codes) all.push_back(described(package, codes, name));
  const auto size_of = [&](const SizeRange& range) -> std::optional<std::int64_t> {
    const auto found = inputs.find(range.input);
    if (found == inputs.end() || found->second.dim() <= static_cast<std::int64_t>(range.dim)) return std::nullopt;
    return found->second.size(static_cast<std::int64_t>(range.dim));
  };
  for (const PackageDescription& one : all) {
    const bool is_for_them = std::all_of(one.sizes.begin(), one.sizes.end(), [&](const SizeRange& range) {
      const auto size = size_of(range);
      return size && range.contains(*size);
    });
    if (is_for_them) return one;
  }
  for (const SizeRange& asked : sizes) {
    const auto size = size_of(asked);
    if (!size) return *this;  // `Signature::check` reports the missing input or dimension.
    std::vector<std::string> known;
    bool is_known = false;
    for (const PackageDescription& one : all) {
      for (const SizeRange& range : one.sizes) {
        if (range.input != asked.input || range.dim != asked.dim) continue;
        is_known = is_known || range.contains(*size);
        if (!std::count(known.begin(), known.end(), range.text())) known.push_back(range.text());
      }
    }
    if (is_known) continue;
    std::string text;
    for (const std::string& each : known) text += (text.empty() ? "" : " and ") + each;
    throw Fault("`" + asked.input + "` has size " + std::to_string(*size) + " in dimension " +
                std::to_string(asked.dim) + ", but the programs are for " + text);
  }
  return *this;
}

void PackageDescription::check_machine() const {
  // Packages of the same minor release are compatible.
  if (release(torch_version) != release(TORCH_VERSION)) {
    throw Fault("the package was compiled with torch " + torch_version +
                ", but this is torch " TORCH_VERSION);
  }
  struct utsname here{};
  if (::uname(&here) == 0 && machine != here.machine) {
    throw Fault("the package was compiled for " + machine + ", but this is " + here.machine);
  }
  if (device != "cpu") {
    const std::string here = device == "cuda" ? gpu_architecture() : "";
    if (here.empty()) {
      throw Fault("the package was compiled for " + device + ", which is not available on this machine");
    }
    if (instructions != std::vector<std::string>{here}) {
      throw Fault("the package was compiled for a GPU with " +
                  alternatives(codes.size() > 1 ? codes : instructions) + ", but this one has " + here +
                  ": compile it for this GPU");
    }
    if (!at::globalContext().hasCUDA()) throw Fault("the package needs a CUDA build of torch");
    return;
  }
  const auto capabilities = at::cpu::get_cpu_capabilities();
  for (const std::string& name : instructions) {
    const auto found = capabilities.find(name);
    if (found == capabilities.end() || !found->second.isBool() || !found->second.toBool()) {
      throw Fault("the package was compiled for a processor with " + name +
                  ", which this one lacks: compile it on this machine");
    }
  }
}

void PackageDescription::check_libraries() const {
  for (const std::string& name : libraries_for) {
    const bool is_class = name.find("::") != std::string::npos;
    if (is_class ? !is_registered_class(name) : !is_registered_operator(name)) {
      throw Fault((is_class ? "the C++ class " : "the operator ") + name +
                  " is not registered: pass the file of its library with --library");
    }
  }
}

}  // namespace runner
