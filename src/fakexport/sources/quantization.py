"""Models of transformers that their config calls quantized, built by transformers' own quantizers.

A quantizer replaces modules before the weights of a checkpoint are read, and the weights of what it made are
on the `meta` device. Here they become tensors of the build's default device instead, with nothing read.
Seen on transformers 5.23.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fakexport._torch.patching import Patches
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.wrapper_subclasses import is_wrapper
from fakexport.sources.fbgemm_layers import fbgemm_layers
from fakexport.sources.mxfp4_experts import mxfp4_experts
from fakexport.sources.source_error import SourceError, first_line

_META = torch.device("meta")
_PACKED = frozenset(
    {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz}
)
_DECOMPRESSED = (
    "transformers decompresses the weights of compressed-tensors in the first call; for layers in fp8, write "
    '"use_optimized_inference": true into the quantization_config, which keeps them where a GPU has fp8'
)
_DEVICES: Mapping[str, Callable[[], bool]] = MappingProxyType(
    {
        "is_torch_cuda_available": lambda: torch.cuda.is_available(),
        "is_torch_xpu_available": lambda: torch.xpu.is_available(),
    }
)


@dataclass(frozen=True)
class Quantization:
    """How the published weights of a model are quantized, and what became of that in each module built.

    Args:
        method: `fp8`; of weights whose config does not say how, their dtypes.
        settings: The `quantization_config`; None where there is none.
    """

    method: str
    settings: Mapping[str, Any] | None
    _reasons: WeakKeyDictionary[nn.Module, str] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def import_packages(self) -> None:
        """Import what `built` needs: dozens of files, which must not be imported in a fake mode."""
        if self.settings is None:
            return
        with torch_logs_silenced(), suppress(Exception):  # `built` says what fails.
            _quantizer(self.settings)
            for name in ("finegrained_fp8", "mxfp4", "fbgemm_fp8"):
                importlib.import_module(f"transformers.integrations.{name}")

    def built(self, construct: Callable[[], nn.Module]) -> nn.Module:
        """Return the quantized model; where it cannot be built here, the unquantized one.

        Raises:
            Exception: whatever `construct` raises.
        """
        try:
            module, reason = self._quantized(construct)
        except Exception as error:  # Each package refuses in its own way what it cannot do here.
            module = construct()
            reason = str(error) if isinstance(error, SourceError) else first_line(error)
        if reason is not None:
            self._reasons[module] = reason
        return module

    def leave_out(self, module: nn.Module, reason: str) -> None:
        """Say why a module is not quantized."""
        self._reasons[module] = reason

    def left_out(self, module: nn.Module) -> str | None:
        """Return why a module that `built` returned is not quantized, one sentence; None if it is."""
        return self._reasons.get(module)

    def _quantized(self, construct: Callable[[], nn.Module]) -> tuple[nn.Module, str | None]:
        if self.settings is None:
            return construct(), "the config does not say how"
        quantizer = _quantizer(self.settings)
        module = importlib.import_module(type(quantizer).__module__)
        with _said_by(module) as said, mxfp4_experts(module), fbgemm_layers(module):
            quantizer.validate_environment(device_map=None, weights_only=True)
            if _is_dequantizing(quantizer):
                return construct(), _sentence(said)
            with _default_dtype(quantizer.update_dtype(torch.get_default_dtype())):
                model = construct()
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
        return model.eval(), None


def _quantizer(settings: Mapping[str, Any]) -> Any:
    """Return transformers' quantizer for these settings.

    Raises:
        Exception: there is none, or its package is missing or refuses the settings.
    """
    from transformers.quantizers import auto

    own = copy.deepcopy(dict(settings))
    with _said_by(auto):
        if not auto.AutoHfQuantizer.supports_quant_method(own):
            raise SourceError(f"transformers does not know the method {settings.get('quant_method')!r}")
    return auto.AutoHfQuantizer.from_config(own, pre_quantized=True)


@contextmanager
def _said_by(quantizer: Any) -> Iterator[list[str]]:
    """Collect what a module of transformers warns of: that it falls back to unquantized weights, and why."""
    said: list[str] = []

    def collect(message: object, *args: object, **more: object) -> None:
        said.append(str(message))

    logger = getattr(quantizer, "logger", None)
    names = () if logger is None else ("warning_once", "warning")
    # These remember their first answer, which was for another target or for no emulation at all.
    remembered = {
        (quantizer, name): is_available for name, is_available in _DEVICES.items() if hasattr(quantizer, name)
    }
    with Patches({**{(logger, name): collect for name in names}, **remembered}):
        yield said


def _is_decompressed_later(model: Any) -> bool:
    """Return whether a hook of compressed-tensors unpacks layers in the first call.

    A hook that has nothing to unpack is removed.
    """
    hook = getattr(model, "ct_decompress_hook", None)
    if hook is None or any(hasattr(part, "quantization_scheme") for part in model.modules()):
        return hook is not None
    hook.remove()
    del model.ct_decompress_hook
    return False


def _is_packed(model: nn.Module) -> bool:
    """Return whether anything was quantized: a weight has a packed dtype or a class of its own."""
    return any(
        tensor.dim() > 1 and (tensor.dtype in _PACKED or is_wrapper(tensor))
        for tensor in (*model.parameters(), *model.buffers())
    )


def _sentence(said: list[str]) -> str:
    return " ".join(said[-1].split()) if said else "transformers builds it unquantized here"


def _is_dequantizing(quantizer: Any) -> bool:
    return bool(getattr(quantizer.quantization_config, "dequantize", False))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _leave_meta(model: nn.Module) -> None:
    """Replace each tensor on `meta` by one without values on the default device."""
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
    """Quantize the weights themselves, where that is how a quantizer makes tensors of a class of its own."""
    if quantizer.quantization_config.quant_method != "torchao":
        return
    operation = quantizer.get_quantize_ops()
    for name, parameter in list(model.named_parameters()):
        if quantizer.param_needs_quantization(model, name):
            operation.convert({name: parameter}, model=model, full_layer_name=name, missing_keys=set())
