"""What `torch_settings` relies on: settings of torch have getters, and which of them have none."""

from __future__ import annotations

import os

import pytest
import torch

from fakexport._torch.tracing.torch_settings import TorchSettings, getter_of, setting_names

# Setters without a getter that takes no argument, and why an operator's metadata does not depend on them.
WITHOUT_GETTER = {
    "_set_blas_preferred_backend": "libraries of real kernels",
    "_set_cached_tensors_enabled": "memory of CUDA graphs",
    "_set_conj": "of a tensor, which the key has",
    "_set_default_mobile_cpu_allocator": "memory",
    "_set_default_tensor_type": "read as the default dtype and device",
    "_set_dispatch_mode": "the memo looks at the modes itself",
    "_set_fake_constant": "of a tensor, which the key has",
    "_set_fp32_precision_setter": "precision of real kernels",
    "_set_generator_metaclass": "set once, when torch is imported",
    "_set_meta_in_tls_dispatch_include": "state of the dispatcher within a call",
    "_set_neg": "of a tensor, which the key has",
    "_set_print_stack_traces_on_fatal_signal": "output",
    "_set_sdp_use_cudnn": "read as _get_cudnn_sdp_enabled",
    "_set_sdp_use_fa3": "read as _get_fa3_sdp_enabled",
    "_set_sdp_use_fa4": "read as _get_fa4_sdp_enabled",
    "_set_sdp_use_flash": "read as _get_flash_sdp_enabled",
    "_set_sdp_use_math": "read as _get_math_sdp_enabled",
    "_set_sdp_use_mem_efficient": "read as _get_mem_efficient_sdp_enabled",
    "_set_sdp_use_overrideable": "read as _get_overrideable_sdp_enabled",
    "_set_should_use_format_with_string_table": "serialization of TorchScript",
    "_set_skip_next_torch_function": "functions, above operators",
    "_set_storage_access_error_msg": "of a storage without data",
    "_set_storage_data_ptr_access_error_msg": "of a storage without data",
    "_set_tensor_metadata": "of a tensor, for serialization",
    "_set_throw_on_mutable_data_ptr": "of a tensor without data",
    "_set_thread_name": "the name of a thread",
    "_set_value_trace": "TorchScript",
    "_set_warn_deprecated_on_mutable_data_ptr": "of a tensor without data",
    "_set_worker_pids": "data loaders",
    "_set_worker_signal_handlers": "data loaders",
    "set_autocast_cpu_dtype": "read by device type while autocast is on",
    "set_autocast_cpu_enabled": "read by device type while autocast is on",
    "set_autocast_dtype": "read by device type while autocast is on",
    "set_autocast_gpu_dtype": "read by device type while autocast is on",
    "set_autocast_ipu_dtype": "read by device type while autocast is on",
    "set_autocast_ipu_enabled": "read by device type while autocast is on",
    "set_autocast_xla_dtype": "read by device type while autocast is on",
    "set_autocast_xla_enabled": "read by device type while autocast is on",
    "set_flush_denormal": "values of real kernels",
    "set_vital": "output",
}


def test_every_setting_is_read_or_known_not_to_matter():
    """A new torch may add one: find out whether an operator's metadata depends on it."""
    unread = {name for name in setting_names() if getter_of(name) is None}

    assert unread <= WITHOUT_GETTER.keys()


def sdp(is_enabled):
    torch.backends.cuda.enable_flash_sdp(is_enabled)


CHANGES = {
    "gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "flash attention": (lambda: sdp(False), lambda: sdp(True)),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_autocast_enabled("cpu", False),
    ),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "environment": (lambda: os.environ.update(A_SETTING="1"), lambda: os.environ.pop("A_SETTING")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_number_and_its_end_the_first_one(change):
    settings = TorchSettings()
    begin, end = CHANGES[change]
    before = settings.number()

    begin()
    try:
        changed = settings.number()
    finally:
        end()

    assert changed != before
    assert settings.number() == before


def test_the_dtype_of_autocast_is_a_setting():
    settings, found = TorchSettings(), []
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found.append(settings.number())

    assert len(set(found)) == 2
