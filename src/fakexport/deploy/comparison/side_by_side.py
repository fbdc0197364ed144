"""Compare a program with the model of a source, such as `file.py:factory`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.emulation.wrapper_subclasses import flat_tensors
from fakexport._torch.pytree import tree_leaves, tree_map, tree_unflatten
from fakexport.archive import bind, name_in_checkpoint
from fakexport.archive.weights import open_checkpoint
from fakexport.deploy import call_arguments
from fakexport.emulation.fake import is_fake
from fakexport.error import InvalidValue
from fakexport.exporting.program import facts_of, has_value
from fakexport.models.sources import SEED, ExampleInputs, constructed, parse_dtype, resolve
from fakexport.report import Comparison

from .compare import compare


def compare_source(
    source: str,
    program: ExportedProgram,
    *,
    checkpoint: str | None = None,
    inputs: Mapping[str, torch.Tensor] | None = None,
    devices: str | Mapping[str, str] | None = None,
    dtype: str | None = None,
    use_cache: bool = False,
    trust_remote_code: bool = False,
) -> Comparison:
    """Construct a model, load the same weights into the model and the program, and compare the two.

    The weights come from the checkpoint, if one is passed. Otherwise they come from the program or, if the
    program is weight-less, from the model's constructor with seed 0. The inputs are, by default, the example
    inputs of the source. The other arguments are the same as for `check` and `bind`.

    Raises:
        SourceError: The source cannot be read, or has no example inputs.
        BindError, CheckpointError: The weights do not fit.
        ValueError: The model's weights do not match the program's, the model cannot run on this machine,
            or the inputs do not fit.
    """
    opened = None if checkpoint is None else open_checkpoint(checkpoint)
    found = resolve(source, use_cache=use_cache, trust_remote_code=trust_remote_code)
    module, examples = constructed(found, None if dtype is None else parse_dtype(dtype))
    if opened is not None:
        weights: Any = opened
        origin = f"weights: from {checkpoint}"
    elif any(is_fake(tensor) for tensor in program.state_dict.values()):
        prefix = facts_of(program).prefix  # `bind` expects names as in a checkpoint.
        own = flat_tensors(module.state_dict())
        weights = {name_in_checkpoint(name, prefix): tensor for name, tensor in own.items()}
        origin = f"weights: from the model, constructed with seed {SEED}"
    else:
        weights, origin = None, "weights: from the program"
    if weights is not None:
        constants = _constants(program, module)
        program = bind(program, weights, devices=devices, constants=constants, check_finite=False)
    _load(module, program, source)
    if inputs is not None:
        args, kwargs = call_arguments(program, inputs)
        assumptions: tuple[str, ...] = (origin,)
    else:
        args, kwargs = _as_the_program_takes_them(program, examples, source)
        assumptions = (origin, "inputs: the example inputs of the source")
    comparison = compare(module, program, args, kwargs)
    return replace(comparison, assumptions=(*assumptions, *comparison.assumptions))


def _as_the_program_takes_them(
    program: ExportedProgram, examples: ExampleInputs | None, source: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs in the structure of the program's inputs, and on its devices."""
    wanted = program.call_spec.in_spec
    leaves = [] if examples is None else tree_leaves((examples.args, dict(examples.kwargs)))
    if len(leaves) != wanted.num_leaves:
        raise InvalidValue(f"{source}: its example inputs do not match the program's; pass --inputs")
    devices = {tensor.device for tensor in program.state_dict.values()}
    device = devices.pop() if len(devices) == 1 else None

    def placed(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) and device is not None else value

    args, kwargs = tree_unflatten(tree_map(placed, leaves), wanted)
    return args, kwargs


def _constants(program: ExportedProgram, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's values for the constants that have no value in the program."""
    buffers = flat_tensors(dict(module.named_buffers()))
    constants = program.constants
    return {
        name: buffers[name].cpu()
        for name in constants.keys() & buffers.keys()
        if not has_value(constants[name])
    }


def _load(module: nn.Module, program: ExportedProgram, source: str) -> None:
    """Load the program's weights into the model, on the program's device."""
    devices = {tensor.device for tensor in program.state_dict.values()}
    if len(devices) == 1:
        module.to(devices.pop())
    held = module.state_dict(keep_vars=True)
    own = flat_tensors(held)
    for name, tensor in program.state_dict.items():
        if name in own and (own[name].shape, own[name].dtype) != (tensor.shape, tensor.dtype):
            raise InvalidValue(
                f"{source}: {name} is {_kind(own[name])} in the model but {_kind(tensor)} in the "
                "program; was it exported with a different dtype or config?"
            )
    if different := sorted(own.keys() ^ program.state_dict.keys()):
        where = "the model" if different[0] in own else "the program"
        raise InvalidValue(f"{source}: only {where} has the weight {different[0]!r}")
    module.load_state_dict({n: t for n, t in program.state_dict.items() if n in held}, strict=False)
    with torch.no_grad():
        # These tensors are inside tensor subclasses, whose own `copy_` could do anything.
        for name in own.keys() - held.keys():
            own[name].copy_(program.state_dict[name])


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
