"""Inputs and outputs of a program by name: the contract that everything compiled from it keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, TensorArgument

from fakexport._torch.fake_tensors import storage_identity
from fakexport._torch.program_assembly import guards_code
from fakexport._torch.tensor_questions import has_property
from fakexport.conditions import (
    Condition,
    Operation,
    Question,
    conditions_from_json,
    conditions_of,
    conditions_to_json,
    has_identity_guard,
    linear_size,
)
from fakexport.documents import boolean, field, integer, items, mapping, one_of, reader_of, text
from fakexport.error import FakexportError, InvalidValue
from fakexport.program import (
    Spelling,
    SymbolRange,
    plain_name,
    symbol_ranges,
    user_inputs,
    user_outputs,
    written_inputs,
)


class UnsuitableInputs(FakexportError, ValueError):
    """The inputs of a call do not fit the program: one line, before anything runs."""


@dataclass(frozen=True)
class Dimension:
    """A size: `times * symbol + plus`, or `plus` where there is no symbol.

    Args:
        symbol: Its name in the program, `s17`; None for a fixed size, and for one that is not checked.
        times, plus: Integers.
        lower, upper: Smallest and largest size; None if there is no bound.
        is_checked: False for a size that is not a linear expression of one symbol.
    """

    symbol: str | None = None
    times: int = 0
    plus: int = 0
    lower: int | None = None
    upper: int | None = None
    is_checked: bool = True

    def __str__(self) -> str:
        if not self.is_checked:
            return "?"
        if self.symbol is None:
            return str(self.plus)
        product = self.symbol if self.times == 1 else f"{self.times}*{self.symbol}"
        return product if not self.plus else f"{product}{self.plus:+d}"


@dataclass(frozen=True)
class InputTensor:
    """A tensor that a call must pass.

    Args:
        name: As in the program, `input_ids`.
        dtype: torch's name without `torch.`.
        shape: Its dimensions.
        device: Where the program expects it, `cpu`.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    device: str


@dataclass(frozen=True)
class OutputTensor:
    """A leaf of what a call returns: its path, `past_key_values.0.1`, and whether it is a tensor.

    A number or None is not among the results.
    """

    name: str
    is_tensor: bool


@dataclass(frozen=True)
class Signature:
    """The tensors of a call.

    Args:
        inputs: In the order of the flat call. Inputs that are not tensors are fixed in the program.
        outputs: In the order of the returned leaves.
        conditions: Further shape guards, from branches, divisions and comparisons during the trace.
        has_identity_check: Whether one tensor may not be passed for two inputs.
        written: Inputs that `forward` writes into. Compiled forms write into copies.

    Example:
        >>> from fakexport.capture import export
        >>> batch = {0: torch.export.Dim("batch", max=8)}
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),), dynamic_shapes=(batch,))
        >>> str(Signature.of(program).inputs[0].shape[1])
        '4'
    """

    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputTensor, ...]
    conditions: tuple[Condition, ...] = ()
    has_identity_check: bool = False
    written: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: ExportedProgram) -> Signature:
        """Return the signature of a program, with or without weights.

        Raises:
            ValueError: an input is neither a tensor nor a constant, or a condition cannot be checked.
        """
        ranges = symbol_ranges(program, Spelling())
        inputs = []
        for each, node in user_inputs(program):
            if isinstance(each, ConstantArgument):
                continue
            if not isinstance(each, TensorArgument):
                raise InvalidValue(f"the input {each.name} is not a tensor; only tensors can be passed")
            inputs.append(_input_tensor(each.name, node.meta["val"], ranges))
        found = user_outputs(program)
        outputs = tuple(OutputTensor(name, isinstance(each, TensorArgument)) for name, each in found)
        shapes = {tensor.name: tensor.shape for tensor in inputs}
        conditions = (each for each in conditions_of(program) if not _is_in_shapes(each, shapes))
        has_identity_check = has_identity_guard(guards_code(program))
        written = tuple(dict.fromkeys(each.name for each in written_inputs(program)))
        return cls(tuple(inputs), outputs, tuple(conditions), has_identity_check, written)

    def check(self, inputs: Mapping[str, torch.Tensor], *, is_in_place: bool = False) -> None:
        """Refuse a call before anything runs: names, dtypes, sizes, ranges and conditions.

        Args:
            inputs: Tensors by name.
            is_in_place: Whether what runs writes into the inputs themselves, as eager mode does.
        Raises:
            UnsuitableInputs: the first thing that does not fit, in one line.
        """
        names = [tensor.name for tensor in self.inputs]
        if unknown := sorted(inputs.keys() - set(names)):
            has = ", ".join(names) or "none"
            raise UnsuitableInputs(f"the program has no input {unknown[0]!r}; it has {has}")
        sizes: dict[str, tuple[int, str]] = {}
        for wanted in self.inputs:
            given = inputs.get(wanted.name)
            if given is None:
                got = ", ".join(sorted(inputs)) or "none"
                raise UnsuitableInputs(f"the input {wanted.name!r} is missing; got {got}")
            if plain_name(given.dtype) != wanted.dtype or given.dim() != len(wanted.shape):
                has, needs = (", ".join(map(str, each.shape)) for each in (given, wanted))
                raise UnsuitableInputs(
                    f"the input {wanted.name!r} is {plain_name(given.dtype)}[{has}], but the program expects "
                    f"{wanted.dtype}[{needs}]"
                )
            for index, (size, dimension) in enumerate(zip(given.shape, wanted.shape, strict=True)):
                self._check_size(
                    f"`{wanted.name}` has size {size} in dimension {index}", size, dimension, sizes
                )
        self._check_identities(inputs)
        if not is_in_place:
            self._check_written(inputs)
        self._check_conditions(inputs)

    def _check_identities(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Refuse a tensor that is passed twice: `forward` may take another branch where `x is y`."""
        names = {id(tensor): name for name, tensor in inputs.items()}
        if len(names) == len(inputs) or not self.has_identity_check:
            return
        again, first = next(
            (name, names[id(tensor)]) for name, tensor in inputs.items() if names[id(tensor)] != name
        )
        raise UnsuitableInputs(
            f"the inputs {again!r} and {first!r} are the same tensor object, but the program was exported "
            f"with different ones: pass `{first}.clone()`"
        )

    def _check_written(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Refuse a written input in which several elements share memory, or that overlaps another."""
        memory = {name: storage_identity(tensor) for name, tensor in inputs.items()} if self.written else {}
        for name in self.written:
            tensor = inputs[name]
            if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
                raise UnsuitableInputs(f"the program writes into `{name}`, which is expanded: pass a clone")
            if other := next((key for key in memory if key != name and memory[key] == memory[name]), None):
                raise UnsuitableInputs(
                    f"the program writes into `{name}`, which shares memory with `{other}`: pass a clone"
                )

    def _check_conditions(self, inputs: Mapping[str, torch.Tensor]) -> None:
        def answer(question: Question) -> int | float | bool:
            return answer_of(question, inputs[question.input])

        for condition in self.conditions:
            if not condition.holds(answer):
                found = " and ".join(answer_text(asked, answer(asked)) for asked in condition.questions)
                raise UnsuitableInputs(f"{found}, but the program needs {condition.reason}")

    def _check_size(
        self, found: str, size: int, dimension: Dimension, sizes: dict[str, tuple[int, str]]
    ) -> None:
        if not dimension.is_checked:
            return
        if dimension.symbol is None:
            if size != dimension.plus:
                raise UnsuitableInputs(f"{found}, but the program expects {dimension.plus}")
            return
        value, rest = divmod(size - dimension.plus, dimension.times)
        if rest:
            raise UnsuitableInputs(f"{found}, but the program expects {dimension}")
        known = sizes.setdefault(dimension.symbol, (value, found))
        if known[0] != value:
            fits = dimension.times * known[0] + dimension.plus
            raise UnsuitableInputs(f"{found}, but the program expects {fits}, since {known[1]}")
        if dimension.lower is not None and size < dimension.lower:
            raise UnsuitableInputs(f"{found}, but the program expects at least {dimension.lower}")
        if dimension.upper is not None and size > dimension.upper:
            raise UnsuitableInputs(f"{found}, but the program expects at most {dimension.upper}")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; `from_dict` reads it."""
        return {
            "inputs": [
                {**vars(tensor), "shape": [_size_to_json(size) for size in tensor.shape]}
                for tensor in self.inputs
            ],
            "outputs": [dataclasses.asdict(leaf) for leaf in self.outputs],
            "conditions": conditions_to_json(self.conditions),
            "has_identity_check": self.has_identity_check,
            "written": list(self.written),
        }

    @classmethod
    def from_dict(cls, value: Any) -> Signature:
        """Read what `to_dict` returned, from an untrusted file.

        Raises:
            DocumentError: it is something else.
        """
        owner = mapping(value)
        inputs = field(owner, "inputs", lambda found: tuple(items(found, _input_from_json)))
        ranks = {tensor.name: len(tensor.shape) for tensor in inputs}
        return cls(
            inputs,
            field(owner, "outputs", lambda found: tuple(items(found, _output_from_json))),
            field(owner, "conditions", lambda found: conditions_from_json(found, ranks)),
            field(owner, "has_identity_check", boolean),
            field(owner, "written", lambda found: tuple(items(found, one_of(ranks, "input")))),
        )


def _input_tensor(name: str, value: torch.Tensor, ranges: Mapping[str, SymbolRange]) -> InputTensor:
    shape = tuple(_dimension(size, ranges) for size in value.shape)
    return InputTensor(name, plain_name(value.dtype), shape, str(value.device))


def _dimension(size: Any, ranges: Mapping[str, SymbolRange]) -> Dimension:
    """Return a dimension; derived ones are linear in one symbol and have ranges of their own."""
    if isinstance(size, int):
        return Dimension(plus=size)
    expression = sympy.sympify(size.node.expr)
    if expression.is_Integer:
        return Dimension(plus=int(expression))
    if (linear := linear_size(expression)) is not None:
        lower, upper = _checked_range(ranges.get(str(expression)))
        return Dimension(*linear, lower, upper)
    return Dimension(is_checked=False)


def _checked_range(bounds: SymbolRange | None) -> tuple[int | None, int | None]:
    """Return torch's range of a size as its own guards check it.

    A program that was captured with sizes of 2 or more has the range from 2 on, and runs for 0 and 1: torch
    checks a lower bound only where it is above 2.
    """
    if bounds is None:
        return None, None
    is_checked = bounds.lower is not None and bounds.lower > 2
    return bounds.lower if is_checked else None, bounds.upper


def _is_in_shapes(condition: Condition, shapes: Mapping[str, tuple[Dimension, ...]]) -> bool:
    """Return whether it only says that two sizes are equal which have the same symbol."""
    match condition.check:
        case Operation("==", (Question(one, "size", i), Question(other, "size", j))):
            first, second = shapes[one][i], shapes[other][j]
            return first.is_checked and first == second
    return False


def _size_to_json(size: Dimension) -> Any:
    if not size.is_checked:
        return None
    return size.plus if size.symbol is None else dataclasses.asdict(size)


def _size_from_json(value: Any) -> Dimension:
    if value is None:
        return Dimension(is_checked=False)
    if not isinstance(value, dict):
        return Dimension(plus=integer(value, 0))
    return _dimension_from_json(value)


_dimension_from_json = reader_of(Dimension, symbol=text, times=lambda value: integer(value, 1))
_input_from_json = reader_of(InputTensor, by_type={Dimension: _size_from_json})
_output_from_json = reader_of(OutputTensor)


def answer_of(question: Question, tensor: torch.Tensor) -> int | float | bool:
    """Return the number or truth that a question asks of a tensor."""
    match question.kind:
        case "size":
            return int(tensor.shape[question.dim])
        case "stride":
            return int(tensor.stride(question.dim))
        case "offset":
            return int(tensor.storage_offset())
        case "storage":
            return storage_identity(tensor)
        case "storage_bytes":
            return tensor.untyped_storage().nbytes()
        case "value":
            value: int | float | bool = tensor.item()
            return value
    return has_property(tensor, question.kind)


def answer_text(question: Question, value: float) -> str:
    """Return an answer as the beginning of an error: `` `x` has size 3 in dimension 0``."""
    match question.kind:
        case "size":
            return f"`{question.input}` has size {value} in dimension {question.dim}"
        case "stride":
            return f"`{question.input}` has stride {value} in dimension {question.dim}"
        case "offset":
            return f"`{question.input}` begins at element {value} of its storage"
        case "value":
            return f"`{question.input}` is {value}"
    return f"{question} is {value}"
