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
from fakexport.archive import Bundle
from fakexport.error import InvalidValue, type_and_line
from fakexport.exporting.program import Calling, calling_of, facts_of, user_inputs, walk
from fakexport.files.documents import are_divided
from fakexport.report import Spread

from .artifact import Artifact, DeployError
from .signature import InputMismatchError, Signature

_CHECKED = re.compile(r"^Runtime assertion failed .* on node '(\w+)'")


def run(program: ExportedProgram | Bundle, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    """Run a bound program, without gradients.

    Args:
        program: A program with real weights, on available devices; or a bundle of programs that divide the
            sizes of a call among them.
        args, kwargs: Either a dict of tensors by input name, such as `{"input_ids": ...}`, or the arguments
            of the model's `forward`. Tensors are moved to the devices that the program expects.

    Returns:
        The output tensors by name, such as `logits`.

    Raises:
        InputMismatchError: Inputs are missing or unknown, or the program was exported for a different dtype,
            number of dimensions or size.
        TypeError: The program was not exported with these arguments of `forward`.
        WeightsNotBoundError: The program has no weights.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> bound = bind(program, {"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
        >>> run(bound, {"input": torch.ones(3, 4)})["output"][0].tolist()
        [4.0, 4.0]
    """
    if isinstance(program, ExportedProgram):
        return LoadedProgram(program)(*args, **kwargs)
    from .size_ranges import LoadedRanges  # It uses this module.

    if not are_divided(facts_of(each).sizes for each in program.values()):
        raise InvalidValue(f"choose a program of the bundle: its methods are {', '.join(program)}")
    return LoadedRanges(program)(*args, **kwargs)


class LoadedProgram:
    """A bound program that can be called repeatedly. It has the same interface as the compiled forms.

    If `is_compiled` is true, `torch.compile` compiles the program in the first call, which takes seconds to
    minutes and needs a C++ compiler. New sizes may cause recompilation.

    Raises:
        WeightsNotBoundError: The program has no weights.
    """

    def __init__(self, program: ExportedProgram, *, is_compiled: bool = False) -> None:
        self._is_compiled = is_compiled
        self._program = program
        # `Signature.check` checks the inputs instead, before they are moved to other devices.
        module: Any = program.module(check_guards=False)
        module.validate_inputs = False
        self._module: Any = torch.compile(module) if is_compiled else module
        self._layout = _Layout.of(program)

    @property
    def program(self) -> ExportedProgram:
        """The program that is run."""
        return self._program

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""
        return self._layout.signature

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the tensors among the arguments of a call by input name; see `run`."""
        return self._layout.named(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Run the program, and return its output tensors by name. The arguments are the same as for `run`.

        Raises:
            InputMismatchError: The inputs do not fit. Raised before anything runs.
            DeployError: `torch.compile` failed; an operator rejects the values of the inputs, such as a token
                id outside the vocabulary; or an assertion of the model failed.
        """
        args, kwargs = self._layout.arguments(self.named(args, kwargs))
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
        """Return the user's line for a failed assertion. torch's message only has the node's name."""
        if (named := _CHECKED.search(str(error))) is None:
            return ""
        spans = (visit.span for visit in walk(self._program) if visit.name == named[1])
        return next((f" ({PurePath(span.path).name}:{span.line})" for span in spans if span is not None), "")


def named_outputs(signature: Signature, leaves: Sequence[object]) -> dict[str, torch.Tensor]:
    """Return the tensors among the leaves of an output, by name."""
    return {
        output.name: leaf
        for output, leaf in zip(signature.outputs, leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    }


def call_arguments(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert tensors by input name to the arguments of the program, on the devices that it expects."""
    return _Layout.of(program).arguments(inputs)


@dataclass(frozen=True)
class _Layout:
    """How to call a program. It is computed once, because that takes longer than a call of a small program.

    `leaves` are the flat arguments: tensors and constants. `is_in_place` is true if the program writes into
    its inputs at the same point as `forward` does, rather than only at the end.
    """

    signature: Signature
    leaves: tuple[TensorArgument | ConstantArgument, ...]
    calling: Calling
    is_in_place: bool

    @classmethod
    def of(cls, program: ExportedProgram) -> _Layout:
        signature = Signature.of(program)  # Raises for unsupported kinds of arguments.
        leaves = [each for each, _ in user_inputs(program)]
        outputs = program.graph_signature.output_specs
        is_in_place = all(spec.kind is not OutputKind.USER_INPUT_MUTATION for spec in outputs)
        return cls(signature, tuple(leaves), calling_of(program), is_in_place)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the tensors among the arguments of a call, by input name."""
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
            raise InputMismatchError(
                f"the arguments are {structure}, but the program expects {self.calling.structure}"
            )
        tensors = {}
        for leaf, value in zip(self.leaves, leaves, strict=True):
            if not isinstance(leaf, ConstantArgument):
                if not isinstance(value, torch.Tensor):
                    raise InputMismatchError(
                        f"the input {leaf.name!r} is {value!r}, but the program expects a tensor"
                    )
                tensors[leaf.name] = value
            elif type(value) is not type(leaf.value) or repr(value) != repr(leaf.value):
                shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                raise InputMismatchError(
                    f"the input {leaf.name!r} is {shown}, but the program was exported with {leaf.value!r}"
                )
        return tensors

    def _is_input(self, given: Mapping[str, Any], names: set[str]) -> bool:
        """Return whether a dict is the only argument of `forward`, not a dict of all inputs by name."""
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
    """The outputs and the wall time of the first call, and the times of the timed calls after it, if any."""

    outputs: dict[str, torch.Tensor]
    first_call_s: float
    latency_s: Spread | None


def run_timed(
    artifact: Artifact, inputs: Mapping[str, torch.Tensor], *, warmup: int = 0, repeat: int = 0
) -> Timed:
    """Call a program once for its outputs, `warmup` times without timing, and `repeat` times with timing.

    A program may modify its inputs, so each later call gets copies, which are made before its timing starts.
    Changes to buffers persist between calls.
    """
    given = {name: tensor.clone() for name, tensor in inputs.items()} if warmup + repeat else inputs
    start = time.perf_counter()
    outputs = artifact(inputs)
    _wait()
    first_call_s = time.perf_counter() - start
    if warmup + repeat:  # Copy the outputs, because later calls may overwrite them.
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
    """Wait for accelerators, because a call returns as soon as its kernels are queued."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
