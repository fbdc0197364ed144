#include "command.hpp"

#include <dlfcn.h>

#include <exception>
#include <iostream>
#include <new>

#include "fault.hpp"
#include "npy.hpp"
#include "printable.hpp"
#include "safetensors.hpp"

namespace runner {
namespace {

namespace fs = std::filesystem;

int report(const std::string& text) {
  write_line("error", text);
  return 2;
}

}  // namespace

void write_line(const std::string& kind, const std::string& text) {
  std::cerr << kind << ": " << printable(text) << '\n';
}

// The library stays loaded, because torch's dispatcher keeps pointers into it.
void load_library(const fs::path& path) {
  if (!fs::exists(path)) throw Fault(path.string() + ": no such file");
  // Use the absolute path, because dlopen searches only system folders for a bare name.
  if (!::dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    throw Fault("the library cannot be loaded: " + std::string(::dlerror()));
  }
}

TensorsByName read_inputs(const std::vector<std::string>& sources) {
  TensorsByName inputs;
  for (const std::string& source : sources) {
    if (fs::path(source).extension() == ".safetensors" && sources.size() == 1) {
      const SafetensorsFile file(source);
      for (const auto& [name, entry] : file.entries()) inputs.emplace(name, file.tensor(name));
      break;
    }
    const std::size_t equals = source.find('=');
    if (equals == std::string::npos)
      throw Fault(in_quotes(source) + " is neither NAME=FILE.npy nor one .safetensors file");
    const std::string name = source.substr(0, equals);
    if (!inputs.emplace(name, read_npy(source.substr(equals + 1))).second) {
      throw Fault("the input " + in_quotes(name) + " is given twice");
    }
  }
  return inputs;
}

void note_others(const fs::path& path, const std::vector<std::string>& others) {
  if (others.empty()) return;
  const std::size_t count = others.size();
  const std::string entries = count == 1 ? "an entry" : std::to_string(count) + " entries";
  write_line("note", path.string() + " has " + entries + " that the model does not use: " +
                         in_quotes(others[0]) + (count == 1 ? "" : ", ..."));
}

int finished(const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const Fault& fault) {
    return report(fault.what());
  } catch (const std::bad_alloc&) {
    return report("out of memory");
  } catch (const std::exception& error) {
    return report(first_line(error));
  } catch (...) {
    return report("an unknown error");
  }
}

}  // namespace runner
