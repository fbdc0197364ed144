"""Make transformers' `from_pretrained` work in a factory, on emulated devices and without accelerate."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from fakexport._torch.emulation.fake_tensors import active_fake_mode
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.patching import Patches
from fakexport.emulation.devices import emulated_topology
from fakexport.error import InvalidValue

from .module_tensors import Inventory

_LOADER = "transformers.modeling_utils"
_finders = threading.Lock()


@contextmanager
def pretrained_models() -> Iterator[None]:
    """Enter a context in which `from_pretrained` accepts emulated devices under a fake mode.

    In this context, `from_pretrained` does not warm up an allocator, and loads weights in the calling thread,
    because the fake mode is active only in that thread. For a single device, it does not need accelerate. It
    rejects a quantized checkpoint that transformers would load unquantized. transformers is not imported by
    this function; if it is not loaded yet, it is patched when a factory imports it.
    """
    with ExitStack() as patched:
        if _LOADER in sys.modules or "transformers" in sys.modules:
            _enter(patched)
            yield
            return
        finder = _OnImport(lambda: _enter(patched))
        finder.install()
        try:
            yield
        finally:
            finder.remove()


def register_caches(inventory: Inventory) -> None:
    """Register the cache classes of a transformers model, or of its submodules, as pytree nodes.

    This calls a registration function of `transformers.exporters`. Models of other libraries are skipped.
    """
    loading = sys.modules.get(_LOADER)
    models = [part for _, part in inventory.parts if loading and isinstance(part, loading.PreTrainedModel)]
    if not models:
        return
    with real_execution():
        exporter = importlib.import_module("transformers.exporters.exporter_dynamo")
        for model in models:
            exporter.register_cache_pytrees_for_model(model)


class _OnImport(MetaPathFinder):
    """Runs a function after the first import of the transformers module that loads weights.

    The list `sys.meta_path` is replaced instead of modified, because imports in other threads iterate over
    it.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def install(self) -> None:
        with _finders:
            sys.meta_path = [self, *sys.meta_path]

    def remove(self) -> None:
        with _finders:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _LOADER:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_act(module: Any) -> None:
            run(module)
            self._act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def _enter(patched: ExitStack) -> None:
    try:
        replacements = _replacements()
    except (ImportError, AttributeError):  # not installed, broken, or a version that loads differently
        return
    patched.enter_context(Patches(replacements))


def _replacements() -> Mapping[tuple[Any, str], Any]:
    loading = importlib.import_module(_LOADER)
    core = importlib.import_module("transformers.core_model_loading")
    check = loading.check_and_set_device_map
    dispatch = loading.accelerate_dispatch
    quantizer = loading.get_hf_quantizer
    warm_up = loading.caching_allocator_warmup
    is_true = core.is_env_variable_true
    return {
        (loading, "check_and_set_device_map"): lambda device_map: _device_map(check, device_map),
        (loading, "accelerate_dispatch"): lambda *args: dispatch(*_without_offload(args)),
        (loading, "get_hf_quantizer"): lambda *args, **rest: _kept(quantizer, *args, **rest),
        (loading, "caching_allocator_warmup"): lambda *args: _in_reality(warm_up, *args),
        (core, "is_env_variable_true"): lambda name, *rest: (
            (name == "HF_DEACTIVATE_ASYNC_LOAD" and active_fake_mode() is not None) or is_true(name, *rest)
        ),
    }


def _in_reality(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args) if active_fake_mode() is None else None


def _device_map(check: Callable[[Any], Any], device_map: Any) -> Any:
    """Check a device map as transformers does. Without accelerate, only single-device maps are accepted."""
    rules = importlib.import_module("transformers.integrations.accelerate")
    if active_fake_mode() is None or rules.is_accelerate_available():
        return check(device_map)
    with Patches({(rules, "is_accelerate_available"): lambda *_: True}):
        checked = check(device_map)
    topology = emulated_topology()
    if isinstance(checked, str) and (topology is None or len(topology.accelerators) < 2):
        return {"": "cpu" if topology is None else topology.default_device}
    if isinstance(checked, str) or len({str(device) for device in (checked or {}).values()}) > 1:
        raise InvalidValue(
            f"device_map={device_map!r} with several devices requires accelerate: pip install accelerate"
        )
    return checked


def _without_offload(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of `dispatch_model` unchanged, or raise if the device map offloads weights.

    accelerate would copy offloaded weights to a GPU on every call.
    """
    offloaded = {str(device) for device in args[2].values()} & {"cpu", "disk"}
    if active_fake_mode() is not None and offloaded:
        raise InvalidValue(
            f"device_map puts modules on {', '.join(sorted(offloaded))}; accelerate copies their "
            "weights to a GPU in each call, which an exported program cannot do: use "
            "--device-map instead"
        )
    return args


def _kept(choose: Callable[..., Any], config: Any, given: Any, *args: Any, **rest: Any) -> Any:
    """Return the quantizer that transformers chose. Raise if it would silently dequantize the checkpoint."""
    stored = getattr(config, "quantization_config", None)
    is_asked = any(_setting(part, "dequantize") for part in (stored, given))
    found = choose(config, given, *args, **rest)
    quantizer = found[0]
    is_lost = quantizer is None or getattr(quantizer.quantization_config, "dequantize", False)
    if active_fake_mode() is not None and stored is not None and is_lost and not is_asked:
        method = _setting(stored, "quant_method") or "unknown method"
        raise InvalidValue(
            f"the checkpoint is quantized ({getattr(method, 'value', method)}), but transformers "
            "would load it unquantized: use a target that supports this quantization and install the "
            "packages that transformers requires for it, or pass a quantization_config with "
            "dequantize=True to check the unquantized model"
        )
    return found


def _setting(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)
