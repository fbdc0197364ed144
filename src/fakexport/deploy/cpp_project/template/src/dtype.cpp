#include "dtype.hpp"

namespace runner {
namespace {

constexpr Dtype dtypes[] = {
    {at::kBool, "bool", "BOOL", "|b1"},
    {at::kByte, "uint8", "U8", "|u1"},
    {at::kChar, "int8", "I8", "|i1"},
    {at::kShort, "int16", "I16", "<i2"},
    {at::kUInt16, "uint16", "U16", "<u2"},
    {at::kInt, "int32", "I32", "<i4"},
    {at::kUInt32, "uint32", "U32", "<u4"},
    {at::kLong, "int64", "I64", "<i8"},
    {at::kUInt64, "uint64", "U64", "<u8"},
    {at::kHalf, "float16", "F16", "<f2"},
    {at::kBFloat16, "bfloat16", "BF16", ""},
    {at::kFloat, "float32", "F32", "<f4"},
    {at::kDouble, "float64", "F64", "<f8"},
    {at::kComplexFloat, "complex64", "C64", "<c8"},
    {at::kComplexDouble, "complex128", "", "<c16"},
    {at::kFloat8_e5m2, "float8_e5m2", "F8_E5M2", ""},
    {at::kFloat8_e4m3fn, "float8_e4m3fn", "F8_E4M3", ""},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu", "F8_E8M0", ""},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", "F8_E5M2FNUZ", ""},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", "F8_E4M3FNUZ", ""},
};

template <typename T>
const Dtype* found(T Dtype::* field, T wanted) {
  for (const Dtype& dtype : dtypes) {
    if (dtype.*field == wanted) return &dtype;
  }
  return nullptr;
}

}  // namespace

const Dtype* dtype_of(at::ScalarType type) { return found(&Dtype::type, type); }

const Dtype* dtype_of_safetensors(std::string_view name) {
  return name.empty() ? nullptr : found(&Dtype::safetensors, name);
}

const Dtype* dtype_of_npy(std::string_view name) { return name.empty() ? nullptr : found(&Dtype::npy, name); }

}  // namespace runner
