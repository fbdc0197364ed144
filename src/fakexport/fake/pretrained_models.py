"""`from_pretrained` of transformers in a factory: on devices that are not here, without accelerate."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from torch import nn

from fakexport._torch.active_modes import active_fake_mode
from fakexport._torch.patching import Patches
from fakexport._torch.real_execution import real_execution
from fakexport.devices import emulated_topology
from fakexport.error import InvalidValue

_LOADER = "transformers.modeling_utils"
_finders = threading.Lock()


@contextmanager
def pretrained_models() -> Iterator[None]:
    """Enter a context in which a `from_pretrained` under a fake mode takes devices as they are emulated.

    It needs no accelerate for one device, warms up no allocator, and loads in the calling thread, which is
    the only one with the fake mode. A quantized checkpoint that transformers would load unquantized is an
    error. transformers is not imported here: where a factory does that, it is patched then.
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


def register_caches(module: nn.Module) -> None:
    """Make the caches of a model of transformers, or of its parts, containers that `torch.export` takes.

    As `transformers.exporters` does it; a model of another library costs nothing.
    """
    loading = sys.modules.get(_LOADER)
    models = [part for part in module.modules() if loading and isinstance(part, loading.PreTrainedModel)]
    if not models:
        return
    with real_execution():
        exporter = importlib.import_module("transformers.exporters.exporter_dynamo")
        for model in models:
            exporter.register_cache_pytrees_for_model(model)


class _OnImport(MetaPathFinder):
    """Acts after the first import of the module that loads weights.

    Imports of other threads iterate over `sys.meta_path`: the list is replaced and not changed, so that none
    of them skips a finder.
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
    except (ImportError, AttributeError):  # none, broken, or one that loads in another way
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
    """Return what transformers makes of a device map; where accelerate is missing, of one with one device."""
    rules = importlib.import_module("transformers.integrations.accelerate")
    if active_fake_mode() is None or rules.is_accelerate_available():
        return check(device_map)
    with Patches({(rules, "is_accelerate_available"): lambda *_: True}):
        checked = check(device_map)
    topology = emulated_topology()
    if isinstance(checked, str) and (topology is None or len(topology.accelerators) < 2):
        return {"": "cpu" if topology is None else topology.default_device}
    if isinstance(checked, str) or len({str(device) for device in (checked or {}).values()}) > 1:
        raise InvalidValue(f"device_map={device_map!r} on several devices: pip install accelerate")
    return checked


def _without_offload(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a dispatch's arguments, unless accelerate would load weights in each call."""
    offloaded = {str(device) for device in args[2].values()} & {"cpu", "disk"}
    if active_fake_mode() is not None and offloaded:
        raise InvalidValue(
            f"device_map puts modules on {', '.join(sorted(offloaded))}, from which accelerate copies their "
            "weights to a GPU in each call; an exported program cannot do that: place them with "
            "--device-map instead"
        )
    return args


def _kept(choose: Callable[..., Any], config: Any, given: Any, *args: Any, **rest: Any) -> Any:
    """Return what transformers makes of a quantized checkpoint, if it stays quantized or was asked not to."""
    stored = getattr(config, "quantization_config", None)
    is_asked = any(_setting(part, "dequantize") for part in (stored, given))
    found = choose(config, given, *args, **rest)
    quantizer = found[0]
    is_lost = quantizer is None or getattr(quantizer.quantization_config, "dequantize", False)
    if active_fake_mode() is not None and stored is not None and is_lost and not is_asked:
        method = _setting(stored, "quant_method") or "no method named"
        raise InvalidValue(
            f"the checkpoint is quantized ({getattr(method, 'value', method)}), and transformers would load "
            "it unquantized here: check it for the device it is meant for, with the packages that "
            "transformers names, or pass a quantization_config with dequantize=True to check the "
            "unquantized model"
        )
    return found


def _setting(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)
