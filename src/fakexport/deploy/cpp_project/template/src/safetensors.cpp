#include "safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "fault.hpp"
#include "json.hpp"

// The format's numbers are little-endian, so this code requires a little-endian machine.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

namespace runner {
namespace {

constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t most_header_bytes = 100'000'000;  // The format's own limit.
constexpr std::size_t most_dimensions = 64;

SafetensorsFile::Entry entry(const json::Value& value, std::int64_t start) {
  if (value.object().size() != 3)
    throw Fault("an entry must have dtype, shape and data_offsets, and nothing else");
  SafetensorsFile::Entry found{};
  const std::string& name = value.at("dtype").text();
  found.dtype = dtype_of_safetensors(name);
  if (!found.dtype) throw Fault("the dtype " + in_quotes(name) + " is not supported");
  for (const json::Value& size : value.at("shape").array()) found.shape.push_back(size.integer());
  if (found.shape.size() > most_dimensions) throw Fault("more than 64 dimensions");
  const json::Array& offsets = value.at("data_offsets").array();
  if (offsets.size() != 2) throw Fault("data_offsets is not a pair of begin and end");
  const std::int64_t begin = offsets[0].integer();
  const std::int64_t end = offsets[1].integer();
  if (begin < 0 || begin > end || end > INT64_MAX - start)
    throw Fault("data_offsets is not a pair of begin and end");
  found.begin = start + begin;
  found.size = end - begin;
  if (byte_count(found.shape, *found.dtype) != found.size) {
    throw Fault(kind(name, found.shape) + " does not fit the " + std::to_string(found.size) +
                " bytes between its offsets");
  }
  return found;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  within(path.string() + " is rejected", [&] { read(0, file_.size()); });
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, std::int64_t begin, std::int64_t size)
    : file_(path) {
  within(path.string() + " is rejected: its constants", [&] {
    if (begin < 0 || size < 0 || begin > file_.size() || size > file_.size() - begin)
      throw Fault("they exceed the file");
    read(begin, size);
  });
}

void SafetensorsFile::read(std::int64_t begin, std::int64_t size) {
  std::uint64_t length = 0;
  if (size < length_bytes) throw Fault("it is too short for a safetensors file");
  file_.read(begin, &length, length_bytes);
  if (length > static_cast<std::uint64_t>(most_header_bytes)) {
    throw Fault("it is not a safetensors file, or its header has more than 100,000,000 bytes");
  }
  const std::int64_t header_bytes = length_bytes + static_cast<std::int64_t>(length);
  if (header_bytes > size) throw Fault("its header exceeds the file");
  std::string text(length, '\0');
  file_.read(begin + length_bytes, text.data(), static_cast<std::int64_t>(length));
  read_header(text, begin + header_bytes);
  check_layout(begin + header_bytes, begin + size);
}

void SafetensorsFile::read_header(const std::string& text, std::int64_t start) {
  if (text.empty() || text[0] != '{') throw Fault("its header does not start with {");
  const json::Value header = within("its header", [&] { return json::parse(text); });
  for (const json::Member& member : header.object()) {
    if (member.name == "__metadata__") {
      within("its __metadata__", [&] {
        for (const json::Member& text : member.value.object()) metadata_.emplace(text.name, text.value.text());
      });
      continue;
    }
    entries_.emplace(member.name, within(in_quotes(member.name), [&] { return entry(member.value, start); }));
  }
}

void SafetensorsFile::check_layout(std::int64_t start, std::int64_t end_of_file) const {
  std::vector<std::pair<std::string, Entry>> ordered(entries_.begin(), entries_.end());
  std::sort(ordered.begin(), ordered.end(), [](const auto& one, const auto& other) {
    return std::pair(one.second.begin, one.second.size) < std::pair(other.second.begin, other.second.size);
  });
  std::int64_t end = start;
  for (const auto& [name, found] : ordered) {
    if (found.begin < end) throw Fault(in_quotes(name) + " overlaps the previous tensor");
    if (found.begin > end) throw Fault(in_quotes(name) + " leaves a hole before it");
    if (found.size > end_of_file - found.begin)
      throw Fault(in_quotes(name) + " exceeds the file");
    end = found.begin + found.size;
  }
  if (end != end_of_file) throw Fault("there are bytes after the last tensor");
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const Entry& found = entries_.at(name);
  at::Tensor tensor = empty_tensor(found.shape, *found.dtype);
  file_.read(found.begin, tensor.data_ptr(), found.size);
  return tensor;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  // Sort by decreasing element size, so that each tensor is aligned.
  NamedTensors ordered = tensors;
  std::sort(ordered.begin(), ordered.end(), [](const auto& one, const auto& other) {
    return std::pair(-static_cast<int>(one.second.element_size()), one.first) <
           std::pair(-static_cast<int>(other.second.element_size()), other.first);
  });
  std::string header = "{";
  std::int64_t end = 0;
  for (auto& [name, tensor] : ordered) {
    const Dtype* dtype = dtype_of(tensor.scalar_type());
    if (!dtype || dtype->safetensors.empty()) {
      throw Fault("safetensors cannot store " + dtype_name(tensor) + ", the dtype of " + in_quotes(name));
    }
    tensor = tensor.cpu().contiguous();
    const std::int64_t begin = end;
    end += static_cast<std::int64_t>(tensor.nbytes());
    header += (header.size() > 1 ? "," : "") + json::encoded(name) + ":{\"dtype\":\"" +
              std::string(dtype->safetensors) + "\",\"shape\":" + kind("", tensor.sizes().vec()) +
              ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();
  OutputFile file(path);
  file.write(&length, length_bytes);
  file.write(header.data(), static_cast<std::int64_t>(length));
  for (const auto& [name, tensor] : ordered) {
    file.write(tensor.const_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()));
  }
  file.commit();
}

}  // namespace runner
