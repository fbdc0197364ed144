"""Run a bound program on named inputs, once or repeatedly."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument

from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_unflatten
from fakexport.error import type_and_line
from fakexport.program import Calling, calling_of, user_inputs, walk
from fakexport.report import Spread

from .artifact import Artifact, DeployError
from .signature import Signature, UnsuitableInputs

_CHECKED = re.compile(r"^Runtime assertion failed .* on node '(\w+)'")


def run(program: ExportedProgram, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    """Run a bound program, without gradients.

    Args:
        program: With real weights, on available devices.
        args, kwargs: A tensor for each input of the program, by name: `{"input_ids": ...}`. Or the arguments
            that the model's `forward` takes, as it takes them. Tensors are moved to the devices that the
            program expects.
    Returns:
        The tensors of the output by name, such as `logits`.
    Raises:
        UnsuitableInputs: inputs are missing or unknown, have another dtype or number of dimensions, or sizes
            that the program was not exported for.
        TypeError: arguments of `forward` that the program was not exported with.
        UnboundProgram: the program has no weights.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> bound = bind(program, {"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
        >>> run(bound, {"input": torch.ones(3, 4)})["output"][0].tolist()
        [4.0, 4.0]
    """
    return LoadedProgram(program)(*args, **kwargs)


class LoadedProgram:
    """A bound program that is called repeatedly, with the interface of all compiled forms.

    Args:
        program: As for `run`.
        is_compiled: Whether `torch.compile` compiles it. That happens in the first call, which takes seconds
            to minutes and needs a C++ compiler; sizes that are new may make it happen again.
    Raises:
        UnboundProgram: the program has no weights.
    """

    def __init__(self, program: ExportedProgram, *, is_compiled: bool = False) -> None:
        self._is_compiled = is_compiled
        self._program = program
        # The signature checks each call, as it is given: before inputs move to other devices.
        module: Any = program.module(check_guards=False)
        module.validate_inputs = False
        self._module: Any = torch.compile(module) if is_compiled else module
        self._layout = _Layout.of(program)

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""
        return self._layout.signature

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the program's outputs, as `run` does.

        Args:
            args, kwargs: Tensors by the names of the signature, or the arguments of `forward`.

        Raises:
            UnsuitableInputs: before anything runs.
            DeployError: `torch.compile` failed; an operator refuses the values of the inputs, such as a token
                that does not exist, or a check of the model does.
        """
        args, kwargs = self._layout.arguments(self._layout.named(args, kwargs))
        try:
            with torch.no_grad():
                result = self._module(*args, **kwargs)
        except Exception as error:
            if self._is_compiled:
                raise DeployError(f"torch.compile failed: {type_and_line(error)}") from error
            if not isinstance(error, (RuntimeError, IndexError)):
                raise
            raise DeployError(
                f"running the program failed: {type_and_line(error)}{self._place_of(error)}"
            ) from error
        return named_outputs(self.signature, tree_leaves(result))

    def _place_of(self, error: Exception) -> str:
        """Return the user's line of a check that failed; torch names its node alone."""
        if (named := _CHECKED.search(str(error))) is None:
            return ""
        spans = (visit.span for visit in walk(self._program) if visit.name == named[1])
        return next((f" ({PurePath(span.path).name}:{span.line})" for span in spans if span is not None), "")


def named_outputs(signature: Signature, leaves: Sequence[object]) -> dict[str, torch.Tensor]:
    """Return the tensors among the returned leaves, by name."""
    return {
        output.name: leaf
        for output, leaf in zip(signature.outputs, leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    }


def call_arguments(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for a program's call, from tensors by name, on the devices that it expects.

    Raises:
        UnsuitableInputs: as for `run`.
    """
    return _Layout.of(program).arguments(inputs)


@dataclass(frozen=True)
class _Layout:
    """How a program takes its arguments. Deriving it takes longer than a call of a small program.

    The flat call takes `leaves`, tensors and fixed values. If `is_in_place`, the program writes into its
    inputs where `forward` does, and not at its end.
    """

    signature: Signature
    leaves: tuple[TensorArgument | ConstantArgument, ...]
    calling: Calling
    is_in_place: bool

    @classmethod
    def of(cls, program: ExportedProgram) -> _Layout:
        signature = Signature.of(program)  # Refuses other kinds of arguments.
        leaves = [each for each, _ in user_inputs(program)]
        outputs = program.graph_signature.output_specs
        is_in_place = all(spec.kind is not OutputKind.USER_INPUT_MUTATION for spec in outputs)
        return cls(signature, tuple(leaves), calling_of(program), is_in_place)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a call by name.

        Raises:
            UnsuitableInputs, TypeError: the arguments are not those of the program.
        """
        names = {each.name for each in self.signature.inputs}
        if (
            len(args) == 1
            and not kwargs
            and isinstance(args[0], Mapping)
            and not self._is_input(args[0], names)
        ):
            return args[0]
        leaves, structure = tree_flatten(self.calling.canonical(args, kwargs))
        if structure != self.calling.structure:
            raise UnsuitableInputs(
                f"the arguments are {structure}, but the program takes {self.calling.structure}"
            )
        tensors = {}
        for leaf, value in zip(self.leaves, leaves, strict=True):
            if not isinstance(leaf, ConstantArgument):
                if not isinstance(value, torch.Tensor):
                    raise UnsuitableInputs(
                        f"the input {leaf.name!r} is {value!r}, but the program expects a tensor"
                    )
                tensors[leaf.name] = value
            elif type(value) is not type(leaf.value) or repr(value) != repr(leaf.value):
                shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                raise UnsuitableInputs(
                    f"the input {leaf.name!r} is {shown}, but the program has {leaf.value!r}"
                )
        return tensors

    def _is_input(self, given: Mapping[str, Any], names: set[str]) -> bool:
        """Return whether a dict is an argument of `forward`, and not the inputs by name."""
        positional, _ = self.calling.structure.children()
        parts = positional.children()
        is_dict = len(parts) == 1 and not parts[0].is_leaf() and parts[0].type is dict
        return is_dict and given.keys() != names and given.keys() == set(parts[0].context)

    def arguments(self, inputs: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.signature.check(inputs, is_in_place=self.is_in_place)
        tensors = {wanted.name: inputs[wanted.name].to(wanted.device) for wanted in self.signature.inputs}
        values = [
            leaf.value if isinstance(leaf, ConstantArgument) else tensors[leaf.name] for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(values, self.calling.structure)
        return args, kwargs


@dataclass(frozen=True)
class Timed:
    """Outputs and wall time of the first call, and times of the calls after the warm-up, if any."""

    outputs: dict[str, torch.Tensor]
    first_call_s: float
    latency_s: Spread | None


def run_timed(
    artifact: Artifact, inputs: Mapping[str, torch.Tensor], *, warmup: int = 0, repeat: int = 0
) -> Timed:
    """Call once for the outputs, then `warmup` times untimed, then `repeat` times timed.

    Each call gets its own copies of the inputs, made before the clock starts: a program may mutate its
        inputs. What it writes into its buffers stays, as in any series of calls.

    Raises:
        UnsuitableInputs: before anything runs.
    """
    given = {name: tensor.clone() for name, tensor in inputs.items()} if warmup + repeat else inputs
    start = time.perf_counter()
    outputs = artifact(inputs)
    _wait()
    first_call_s = time.perf_counter() - start
    if warmup + repeat:  # What lies in the artifact's own memory, later calls overwrite.
        outputs = {name: tensor.clone() for name, tensor in outputs.items()}
    seconds = [_seconds(artifact, given) for _ in range(warmup + repeat)][warmup:]
    return Timed(outputs, first_call_s, Spread.of(seconds) if seconds else None)


def _seconds(artifact: Artifact, inputs: Mapping[str, torch.Tensor]) -> float:
    own = {name: tensor.clone() for name, tensor in inputs.items()}
    start = time.perf_counter()
    artifact(own)
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    """Wait until accelerators are done: their kernels are only queued when a call returns."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
