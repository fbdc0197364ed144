"""Holds the constants of a fake-exported program against those of a real CPU export of the same model.

The oracle is `torch.export` of the model with real data; fakexport has no part in it but for the plain
outputs, without which programs of transformers cannot be traced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.emulation.history import constant_value
from fakexport.exporting.capture import UnboundConstant, capture
from fakexport.exporting.capture.plain_forward import plain_forward
from fakexport.models.sources import Source, resolve

__all__ = ["ConstantComparison", "compare_constants", "same_bits", "tiny_source"]


@dataclass(frozen=True)
class ConstantComparison:
    """Outcome for one model.

    Args:
        equal: Names of constants with the same dtype, shape, strides and bits in both programs.
        different: Name to what differs.
        only_real, only_fake: Names that one program alone has.
        unbound: Those that were named as having no value; not compared.
    """

    equal: tuple[str, ...]
    different: dict[str, str] = field(default_factory=dict)
    only_real: tuple[str, ...] = ()
    only_fake: tuple[str, ...] = ()
    unbound: tuple[UnboundConstant, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether every constant that has a value has the right one, and there are no others."""
        return not (self.different or self.only_real or self.only_fake)


def compare_constants(source: Source, *, topology: str = "cpu") -> ConstantComparison:
    """Exports a model twice, fake and real, and compares the constants of the programs bit for bit.

    Args:
        source: What `sources.resolve` gives: `resolve("hf:bert")`, `resolve("timm:resnet18")`.
        topology: Of the fake export; the real one is always made on the CPU.
    Raises:
        Exception: what the model raises where it cannot be exported for real.
    """
    real = _real_constants(source)
    with emulate(topology) as devices:
        built = build(source.factory, device_map=devices.default_device)
        with built.mode:
            inputs = source.example_inputs(built.module, built.placement.input_device, None)
        tracing = partial(source.tracing, built.module, inputs)
        captured = capture(built.module, inputs.args, inputs.kwargs, tracing=tracing)
    if captured.failure is not None:
        raise AssertionError("the fake export failed") from captured.failure.error
    assert captured.program is not None
    assert captured.recovered is not None
    fake = captured.program.constants
    bound = {name: constant_value(fake[name]) for name in captured.recovered.names}
    differences = {name: _difference(bound[name], real[name]) for name in bound.keys() & real.keys()}
    return ConstantComparison(
        equal=tuple(sorted(name for name, text in differences.items() if not text)),
        different={name: text for name, text in sorted(differences.items()) if text},
        only_real=tuple(sorted(real.keys() - fake.keys())),
        only_fake=tuple(sorted(fake.keys() - real.keys())),
        unbound=captured.recovered.unbound,
    )


def tiny_source(model_type: str, config: dict[str, Any], folder: Path) -> Source:
    """The source of a transformers model from a config, such as those of `tiny_configs.TINY`."""
    path = folder / f"{model_type}.json"
    path.write_text(json.dumps({"model_type": model_type, **config}))
    return resolve(f"hf:{path}")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one dtype, shape, strides, and the same bits; NaN is NaN."""
    return not _difference(a, b)


def _real_constants(source: Source) -> dict[str, torch.Tensor]:
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)
    with source.tracing(module, inputs), plain_forward(module, inputs.args, inputs.kwargs):
        program = torch.export.export(module, inputs.args, dict(inputs.kwargs), strict=False)
    return {name: t for name, t in program.constants.items() if isinstance(t, torch.Tensor)}


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    for what in ("dtype", "shape"):
        if getattr(a, what) != getattr(b, what):
            return f"{what}: {getattr(a, what)} and {getattr(b, what)}"
    if a.stride() != b.stride():
        return f"strides: {a.stride()} and {b.stride()}"
    if torch.equal(_bytes(a), _bytes(b)):
        return ""
    return f"{int((_bytes(a) != _bytes(b)).sum())} bytes of {a.nbytes}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)
