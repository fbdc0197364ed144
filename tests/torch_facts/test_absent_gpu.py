"""What `absent_gpu` and `gpu_worker` rely on in Inductor and Triton."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import cpp_builder, graph
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

import fakexport as fe
from fakexport._torch.operators import absent_gpu
from fakexport._torch.operators.absent_gpu import resource_usage
from fakexport._torch.operators.inductor import AotiPackage
from fakexport.deploy.aoti import with_stand_ins
from fakexport.deploy.aoti.gpu_worker import _constant_names
from fakexport.deploy.aoti.graph import compiled_files
from fakexport.deploy.aoti.package import write_package


def test_the_replaced_functions_have_the_expected_arguments():
    assert list(inspect.signature(PythonWrapperCodegen.generate_and_run_autotune_block).parameters) == [
        "self"
    ]
    assert list(inspect.signature(graph.is_same_tensor).parameters) == ["data", "value"]
    flags, _ = cpp_builder._get_optimization_cflags("g++")
    assert any("march=native" in flag for flag in flags)


def test_what_the_replacements_call_and_are_called_with():
    from torch._inductor import codecache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    assert list(inspect.signature(codecache.write).parameters)[:3] == ["content", "extension", "extra"]
    assert list(inspect.signature(CachingAutotuner.save_gpu_kernel).parameters)[1:3] == ["stream", "launcher"]
    tuning = inspect.getsource(CachingAutotuner.autotune_to_one_config)
    assert "timings = self.benchmark_all_configs(*args, **kwargs)" in tuning
    assert "min(timings, key=timings.get)" in tuning
    assert "CUDA_HOME" in inspect.getsource(cpp_builder)
    assert set(absent_gpu.OPTIONS) <= set(torch._inductor.list_options())


def test_a_kernel_is_recorded_with_its_times_and_the_choice_without_timing(monkeypatch):
    """The stock functions need a GPU, so they are replaced here; `tests/gpu` runs them."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    class Launcher(SimpleNamespace):
        __hash__ = object.__hash__

    def launcher(name, spills):
        config = SimpleNamespace(num_warps=4, name=name)
        return Launcher(config=config, n_regs=32, n_spills=spills, shared=0)

    def benchmark_all_configs(self):
        return self.times

    saved = []
    monkeypatch.setattr(CachingAutotuner, "benchmark_all_configs", benchmark_all_configs)
    monkeypatch.setattr(CachingAutotuner, "save_gpu_kernel", lambda self, stream, best: saved.append(best))
    spilling, first, fast = launcher("spilling", 8), launcher("first", 0), launcher("fast", 0)

    def own(block):
        for name, times in (("several", {spilling: 3e-3, first: 2e-3, fast: 1e-3}), ("one", {first: 1.0})):
            tuner = object.__new__(CachingAutotuner)
            tuner.inductor_meta, tuner.times = {"kernel_name": name}, times
            if len(times) > 1:
                tuner.benchmark_all_configs()
            tuner.save_gpu_kernel("stream", min(times, key=times.get))

    kernels = []
    absent_gpu._with_timing(own, kernels)(None)

    several, one = kernels
    assert saved == [fast, first]
    assert (several.name, several.configurations, several.configuration) == ("several", 3, str(fast.config))
    assert (several.microseconds, several.untimed_microseconds) == (1.0, 2.0)
    assert several.untimed == str(first.config)
    assert (one.name, one.configurations, one.microseconds, one.untimed) == ("one", 1, None, "")


def test_triton_asks_its_driver_for_what_ours_answers():
    pytest.importorskip("triton")
    from triton.backends.nvidia.driver import CudaDriver
    from triton.compiler.compiler import CompiledKernel

    loading = inspect.getsource(CompiledKernel._init_handles)

    assert "driver.active.utils.load_binary(" in loading
    assert re.search(
        r"self\.module, self\.function, self\.n_regs, self\.n_spills, self\.n_max_threads = ", loading
    )
    assert "driver.active.utils.get_device_properties(device)" in inspect.getsource(
        sys.modules[CompiledKernel.__module__]
    )
    assert {"get_current_target", "get_device_interface"} <= set(dir(CudaDriver))


def test_queries_of_the_device_interface_are_functions_of_torch_cuda():
    bound = {
        name: held.__func__ for name, held in vars(CudaInterface).items() if isinstance(held, staticmethod)
    }

    assert {"current_device", "device_count", "synchronize", "exchange_device"} <= bound.keys()
    for function in (bound["current_device"], bound["device_count"]):
        assert getattr(torch.cuda, function.__name__) is not None
        assert function.__module__.startswith("torch.cuda")


def test_a_cubin_without_the_kernel_has_no_resource_usage():
    pytest.importorskip("triton")

    with pytest.raises(Exception, match="cuobjdump"):
        resource_usage("kernel", b"not a cubin")


@pytest.mark.slow
def test_the_source_of_the_code_names_the_constants(tmp_path: Path):
    program = fe.export(
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)), (torch.ones(2, 4),)
    )

    files = compiled_files(with_stand_ins(program), tmp_path / "code", has_weights=False)

    write_package(tmp_path / "package.pt2", files)
    assert sorted(_constant_names(files)) == sorted(AotiPackage(tmp_path / "package.pt2").constant_names)
    assert len(_constant_names(files)) == 4


def test_the_cuda_wheel_has_the_functions_that_packages_may_call():
    """The linker sees a stub of `libtorch_cuda.so` that has all of them."""
    headers = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch"
    texts = [(headers / name).read_text() for name in ("generated/c_shim_cuda.h", "c/shim.h")]
    declared = {name for text in texts for name in re.findall(r"\b(aoti_torch_\w*cuda\w*)\s*\(", text)}
    wheel = set(Path(__file__).with_name("cuda_wheel_symbols.txt").read_text().splitlines())

    assert len(declared) > 100
    assert declared <= wheel


def test_instructions_of_the_host_are_asked_for_by_name():
    from torch._inductor import cpu_vec_isa

    assert "mavx2" in cpu_vec_isa.VecAVX2().build_arch_flags()
    assert "valid_vec_isa_list" in cpu_vec_isa.pick_vec_isa.__code__.co_names
