"""Build quantized transformers models with transformers' own quantizers.

A quantizer replaces modules before a checkpoint is read, and creates their weights on the `meta` device.
Here, these weights become tensors on the default device, and no checkpoint is read. Verified with
transformers 5.23.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fakexport._torch.default_dtype import default_dtype
from fakexport._torch.emulation.wrapper_subclasses import is_wrapper
from fakexport._torch.patching import Patches, stock_function
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.models.sources.quantized.fbgemm_layers import fbgemm_layers
from fakexport.models.sources.quantized.mxfp4_experts import mxfp4_experts
from fakexport.models.sources.source_error import SourceError, first_line

_META = torch.device("meta")
_PACKED = frozenset(
    {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz}
)
_DECOMPRESSED = (
    "transformers decompresses compressed-tensors weights in the first call; for fp8 layers, add "
    '"use_optimized_inference": true to the quantization_config, which keeps them compressed if '
    "the GPU supports fp8"
)
_NOT_OF_WEIGHTS = ("kv_cache", "producer", "version")
_SAME_WITHOUT = {"quant_method": None, "ignored_layers": None, "fmt": ("e4m3", "float8_e4m3fn")}
"""Settings that are not reported as ignored if they have one of these values. None stands for any value.

`quant_method` selects the quantizer, `ignored_layers` is an alias, and the values of `fmt` are the default.
"""
_DEVICES: Mapping[str, Callable[[], bool]] = MappingProxyType(
    {
        "is_torch_cuda_available": lambda: torch.cuda.is_available(),
        "is_torch_xpu_available": lambda: torch.xpu.is_available(),
    }
)


@dataclass(frozen=True)
class Quantization:
    """The quantization of a model's published weights. It also records why modules were built unquantized.

    Args:
        method: The method, such as `fp8`, or the dtypes of the weights if the config does not name a method.
        settings: The `quantization_config`, or None.
    """

    method: str
    settings: Mapping[str, Any] | None
    _reasons: WeakKeyDictionary[nn.Module, str] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )
    _unpacked: WeakKeyDictionary[nn.Module, int] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def import_packages(self) -> None:
        """Import the dozens of files that `built` needs, which must not be imported in a fake mode."""
        if self.settings is None:
            return
        with torch_logs_silenced(), suppress(Exception):  # `built` reports the error.
            _quantizer(self.settings)
            for name in ("finegrained_fp8", "mxfp4", "fbgemm_fp8"):
                importlib.import_module(f"transformers.integrations.{name}")

    def built(self, construct: Callable[[], nn.Module]) -> nn.Module:
        """Return the quantized model, or the unquantized model if the quantized one cannot be built."""
        try:
            module, reason = self._quantized(construct)
        except Exception as error:  # Packages raise different errors if this machine lacks what they need.
            module = construct()
            reason = str(error) if isinstance(error, SourceError) else first_line(error)
        if reason is not None:
            self._reasons[module] = reason
        return module

    def leave_out(self, module: nn.Module, reason: str) -> None:
        """Record why a module is not quantized."""
        self._reasons[module] = reason

    def left_out(self, module: nn.Module) -> str | None:
        """Return a sentence that says why a module from `built` is not quantized; None if it is."""
        return self._reasons.get(module)

    def unpacked_parameters(self, module: nn.Module) -> int | None:
        """Return the number of parameters of a module before it was quantized; None if it is not."""
        return self._unpacked.get(module)

    def _quantized(self, construct: Callable[[], nn.Module]) -> tuple[nn.Module, str | None]:
        if self.settings is None:
            return construct(), "the config does not specify the quantization method"
        quantizer = _quantizer(self.settings)
        module = importlib.import_module(type(quantizer).__module__)
        replaced = {**mxfp4_experts(module), **fbgemm_layers(module), **_compiled_patterns()}
        with _collected_warnings(module) as said, Patches(replaced):
            quantizer.validate_environment(device_map=None, weights_only=True)
            if _is_dequantizing(quantizer):
                return construct(), _sentence(said)
            with default_dtype(quantizer.update_dtype(torch.get_default_dtype())):
                model = construct()
            unpacked = sum(parameter.numel() for parameter in model.parameters())
            with _META:
                quantizer.preprocess_model(
                    model=model, dtype=model.dtype, device_map=None, checkpoint_files=None, use_kernels=False
                )
            if _is_dequantizing(quantizer):
                return construct(), _sentence(said)
        if _is_decompressed_later(model):
            return construct(), _DECOMPRESSED
        _leave_meta(model)
        _quantize_weights(model, quantizer)
        model.hf_quantizer = quantizer
        quantizer.postprocess_model(model)
        if not _is_packed(model):
            return (
                construct(),
                f"the quantizer of {self.method} packs weights only while it reads a checkpoint",
            )
        self._unpacked[model] = unpacked
        return model.eval(), None


def _compiled_patterns() -> dict[tuple[Any, str], Any]:
    """Return a patch that lets transformers compile each pattern of unquantized modules once.

    transformers 5.23 matches every module with every pattern, and `re` caches 512 patterns. The fp8 configs
    of GLM-5 have more patterns, so without the patch, each match compiles a pattern.
    """
    from transformers.quantizers import quantizers_utils

    if (stock := getattr(quantizers_utils, "should_convert_module", None)) is None:
        return {}
    compiled = cache(re.compile)
    own = {**vars(re), "match": lambda pattern, text: compiled(pattern).match(text)}
    names = {**stock.__globals__, "re": SimpleNamespace(**own)}
    return {
        (stock, "__code__"): FunctionType(stock_function(stock).__code__, names, None, stock.__defaults__)
    }


def _quantizer(settings: Mapping[str, Any]) -> Any:
    """Return transformers' quantizer for these settings."""
    from transformers.quantizers import auto

    own = copy.deepcopy(dict(settings))
    with _collected_warnings(auto):
        if not auto.AutoHfQuantizer.supports_quant_method(own):
            raise SourceError(f"transformers has no quantization method {settings.get('quant_method')!r}")
    quantizer = auto.AutoHfQuantizer.from_config(own, pre_quantized=True)
    if ignored := list(_ignored(settings, quantizer.quantization_config)):
        raise SourceError(
            f"transformers ignores {', '.join(ignored)} in the quantization_config; an ignored setting may "
            "describe how weights are stored"
        )
    return quantizer


def _ignored(settings: Mapping[str, Any], read: Any) -> Iterator[str]:
    """Yield the settings that a quantization config of transformers accepts without reading them."""
    known = inspect.signature(type(read).__init__).parameters.keys() | vars(read).keys()
    for name, value in settings.items():
        if not value or name in known or name.startswith(_NOT_OF_WEIGHTS):
            continue
        if name not in _SAME_WITHOUT or value not in (_SAME_WITHOUT[name] or (value,)):
            yield name


@contextmanager
def _collected_warnings(quantizer: Any) -> Iterator[list[str]]:
    """Yield a list of the warnings that a quantizer's module logs when it uses unquantized weights."""
    said: list[str] = []

    def collect(message: object, *args: object, **more: object) -> None:
        said.append(str(message))

    logger = getattr(quantizer, "logger", None)
    names = () if logger is None else ("warning_once", "warning")
    # These functions cache their first result, which may be for a different target or without emulation.
    remembered = {
        (quantizer, name): is_available for name, is_available in _DEVICES.items() if hasattr(quantizer, name)
    }
    with Patches({**{(logger, name): collect for name in names}, **remembered}):
        yield said


def _is_decompressed_later(model: Any) -> bool:
    """Return whether a hook decompresses layers in the first call. Remove a hook that has nothing to do."""
    hook = getattr(model, "ct_decompress_hook", None)
    if hook is None or any(hasattr(part, "quantization_scheme") for part in model.modules()):
        return hook is not None
    hook.remove()
    del model.ct_decompress_hook
    return False


def _is_packed(model: nn.Module) -> bool:
    """Return whether the model is quantized: a weight has a packed dtype or is a wrapper subclass."""
    return any(
        tensor.dim() > 1 and (tensor.dtype in _PACKED or is_wrapper(tensor))
        for tensor in (*model.parameters(), *model.buffers())
    )


def _sentence(said: list[str]) -> str:
    return " ".join(said[-1].split()) if said else "transformers builds the model unquantized for this target"


def _is_dequantizing(quantizer: Any) -> bool:
    return bool(getattr(quantizer.quantization_config, "dequantize", False))


def _leave_meta(model: nn.Module) -> None:
    """Replace each `meta` tensor with an uninitialized tensor on the default device."""
    made: dict[int, torch.Tensor] = {}
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.device == _META:
                if id(parameter) not in made:
                    empty = _empty(parameter)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                setattr(part, name, made[id(parameter)])
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.device == _META:
                setattr(part, name, made.setdefault(id(buffer), _empty(buffer)))


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=torch.get_default_device())


def _quantize_weights(model: Any, quantizer: Any) -> None:
    """Quantize the weights for quantizers that represent them as tensor subclasses."""
    if quantizer.quantization_config.quant_method != "torchao":
        return
    operation = quantizer.get_quantize_ops()
    for name, parameter in list(model.named_parameters()):
        if quantizer.param_needs_quantization(model, name):
            operation.convert({name: parameter}, model=model, full_layer_name=name, missing_keys=set())
