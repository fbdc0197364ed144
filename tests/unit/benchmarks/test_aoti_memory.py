"""What a wrapper of AOTInductor allocates: buffers that are taken, handed on and freed."""

from benchmarks.aoti_memory import planned_bytes

WRAPPER = """
    static constexpr int64_t int_array_0[] = {4L, 16L};
    static constexpr int64_t int_array_1[] = {8L, };
void AOTInductorModel::run_impl(
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_1, int_array_1, cached_torch_dtype_int64, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));
    auto buf2 = std::move(buf0);  // reuse
    buf1.reset();
    auto buf3 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf2, 2, int_array_0, int_array_1, 0L)); buf2.reset();  // reuse
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_1, int_array_1, cached_torch_dtype_bfloat16, cached_torch_device_type_cpu, this->device_idx_, &buf4_handle));
    buf3.reset();
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf5_handle));
"""  # noqa: E501


def test_the_peak_counts_a_buffer_that_is_handed_on_once():
    assert planned_bytes(WRAPPER) == 4 * 16 * 4 + 8 * 8
