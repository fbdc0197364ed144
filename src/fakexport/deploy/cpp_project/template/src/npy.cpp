#include "npy.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include "fault.hpp"
#include "file.hpp"

namespace runner {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::int64_t most_header_bytes = 1'000'000;
constexpr std::size_t most_dimensions = 64;

struct Header {
  std::string descr;
  bool is_fortran_order = false;
  Shape shape;
};

// Parses the header, which is Python text: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 8), }`.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  Header whole() {
    Header found;
    bool has_descr = false, has_order = false, has_shape = false;
    take("{");
    while (!takes("}")) {
      const std::string key = string();
      take(":");
      if (key == "descr" && !has_descr) {
        has_descr = true;
        found.descr = string();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        found.is_fortran_order = takes("True");
        if (!found.is_fortran_order) take("False");
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        found.shape = shape();
      } else {
        throw Fault("its header has the unexpected field " + in_quotes(key));
      }
      if (!takes(",")) {
        take("}");
        break;
      }
    }
    skip_space();
    if (at_ != text_.size() || !has_descr || !has_order || !has_shape) throw Fault("its header is damaged");
    return found;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool takes(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void take(std::string_view word) {
    if (!takes(word)) throw Fault("its header is damaged: expected " + std::string(word));
  }

  std::string string() {
    take("'");
    const std::size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) throw Fault("its header is damaged: an unterminated string");
    const std::string found(text_.substr(at_, end - at_));
    at_ = end + 1;
    return found;
  }

  Shape shape() {
    Shape sizes;
    take("(");
    while (!takes(")")) {
      if (sizes.size() == most_dimensions) throw Fault("more than 64 dimensions");
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) throw Fault("its header is damaged: expected a size");
      at_ = static_cast<std::size_t>(end - text_.data());
      sizes.push_back(size);
      if (!takes(",")) {
        take(")");
        break;
      }
    }
    return sizes;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

const Dtype& dtype_named(const std::string& descr) {
  const Dtype* dtype = dtype_of_npy(descr);
  if (dtype) return *dtype;
  if (!descr.empty() && descr[0] == '>') throw Fault("its numbers are big-endian");
  throw Fault("the dtype " + in_quotes(descr) + " is not supported");
}

at::Tensor array(const InputFile& file) {
  unsigned char start[12] = {};
  if (file.size() < 10) throw Fault("it is too short for an npy file");
  file.read(0, start, std::min<std::int64_t>(file.size(), sizeof(start)));
  if (std::memcmp(start, magic.data(), magic.size()) != 0) throw Fault("it is not an npy file");
  const int version = start[6];
  if (version < 1 || version > 3) throw Fault("its version " + std::to_string(version) + " is not supported");
  const std::int64_t header_at = version == 1 ? 10 : 12;
  std::int64_t length = start[8] | start[9] << 8;
  if (version > 1)
    length |= static_cast<std::int64_t>(start[10]) << 16 | static_cast<std::int64_t>(start[11]) << 24;
  if (length > most_header_bytes) throw Fault("its header has more than 1,000,000 bytes");
  if (length > file.size() - header_at) throw Fault("its header exceeds the file");
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(header_at, text.data(), length);
  Header header = HeaderReader(text).whole();
  const Dtype& dtype = dtype_named(header.descr);
  const std::int64_t bytes = byte_count(header.shape, dtype), has = file.size() - header_at - length;
  if (bytes != has) {
    throw Fault(kind(std::string(dtype.name), header.shape) + " takes " + std::to_string(bytes) +
                " bytes, but the file has " + std::to_string(has));
  }
  if (header.is_fortran_order) std::reverse(header.shape.begin(), header.shape.end());
  at::Tensor tensor = empty_tensor(header.shape, dtype);
  file.read(header_at + length, tensor.data_ptr(), bytes);
  if (!header.is_fortran_order) return tensor;
  Shape reversed(header.shape.size());
  for (std::size_t i = 0; i < reversed.size(); ++i)
    reversed[i] = static_cast<std::int64_t>(reversed.size() - 1 - i);
  return tensor.permute(reversed).contiguous();
}

void write_npy(const std::filesystem::path& path, const at::Tensor& given, const Dtype& dtype) {
  const at::Tensor tensor = given.cpu().contiguous();
  std::string shape;
  for (const std::int64_t size : tensor.sizes()) shape += std::to_string(size) + ", ";
  std::string header =
      "{'descr': '" + std::string(dtype.npy) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (magic.size() + 4 + header.size()) % 64, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());
  OutputFile file(path);
  file.write(magic.data(), static_cast<std::int64_t>(magic.size()));
  file.write("\x01\x00", 2);
  file.write(&length, sizeof(length));
  file.write(header.data(), static_cast<std::int64_t>(header.size()));
  file.write(tensor.const_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()));
  file.commit();
}

}  // namespace

at::Tensor read_npy(const std::filesystem::path& path) {
  const InputFile file(path);
  return within(path.string() + " is rejected", [&] { return array(file); });
}

void write_npy_folder(const std::filesystem::path& folder, const NamedTensors& tensors) {
  namespace fs = std::filesystem;
  for (const auto& [name, tensor] : tensors) {
    const Dtype* dtype = dtype_of(tensor.scalar_type());
    if (!dtype || dtype->npy.empty()) {
      throw Fault("npy cannot store " + dtype_name(tensor) + ", the dtype of " + in_quotes(name) +
                  "; write a .safetensors file");
    }
    if (name.empty() || name.size() > 200 || name.find('/') != std::string::npos) {
      throw Fault(in_quotes(name) + " is not a valid file name; write a .safetensors file");
    }
  }
  const fs::path target = folder.has_filename() ? folder : folder.parent_path();
  const fs::path temporary = temporary_beside(target);
  std::error_code error;
  const auto fail = [&] {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw Fault("cannot write " + target.string() + ": " + error.message());
  };
  if (!fs::create_directory(temporary, error) && !error) error = std::make_error_code(std::errc::file_exists);
  if (error) fail();
  try {
    for (const auto& [name, tensor] : tensors) {
      write_npy(temporary / (name + ".npy"), tensor, *dtype_of(tensor.scalar_type()));
    }
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  fs::rename(temporary, target, error);  // This replaces an empty folder, but nothing else.
  if (error) fail();
}

}  // namespace runner
