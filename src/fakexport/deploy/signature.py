"""The inputs and outputs of a program, by name. All compiled forms of a program have the same signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, TensorArgument

from fakexport._torch.emulation.fake_tensors import storage_identity
from fakexport._torch.tracing.program_assembly import guards_code
from fakexport._torch.tracing.tensor_questions import has_property
from fakexport.error import FakexportError, InvalidValue
from fakexport.exporting.guards import conditions_of, has_identity_guard, linear_size
from fakexport.exporting.interface import (
    Condition,
    Operation,
    Question,
    SymbolRange,
    conditions_from_json,
    conditions_to_json,
)
from fakexport.exporting.program import (
    Spelling,
    plain_name,
    symbol_ranges,
    user_inputs,
    user_outputs,
    walk,
    written_inputs,
)
from fakexport.files.documents import boolean, field, integer, items, mapping, one_of, reader_of, text


class InputMismatchError(FakexportError, ValueError):
    """The inputs of a call do not fit the program. Raised before anything runs. The message is one line."""


_Factor = Annotated[int, lambda value: integer(value, 1)]


@dataclass(frozen=True)
class Dimension:
    """A size of an input: `times * symbol + plus`, or `plus` if there is no symbol.

    Args:
        symbol: Name of the symbol in the program, such as `s17`; None for a static size or a size that is not
            checked.
        times, plus: Factor and offset in the formula above.
        lower, upper: Smallest and largest allowed size; None if there is no bound.
        is_checked: Whether the size is checked. Only static sizes and linear expressions of one symbol are
            checked.
    """

    symbol: Annotated[str | None, text] = None
    times: _Factor = 0
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
    """A tensor that must be passed to a call. `dtype` is the name that torch uses, such as `float32`."""

    name: str
    dtype: str
    shape: tuple[Annotated[Dimension, _size_from_json], ...]
    device: str


@dataclass(frozen=True)
class OutputTensor:
    """A leaf of a call's output: its path, such as `past_key_values.0.1`, and whether it is a tensor.

    Leaves that are not tensors (numbers and None) are omitted from the results.
    """

    name: str
    is_tensor: bool


@dataclass(frozen=True)
class Signature:
    """The input and output tensors of a call.

    Args:
        inputs: Input tensors in the order of the flat arguments. Arguments that are not tensors are fixed in
            the program.
        outputs: Output leaves in the order in which they are returned.
        conditions: Other shape guards, added during the trace by branches, divisions and comparisons.
        has_identity_check: Whether passing the same tensor for two inputs is an error.
        written: Inputs that `forward` writes into. Compiled forms write into copies of them.

    Example:
        >>> from fakexport.exporting.capture import export
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
            ValueError: An input is neither a tensor nor a constant, or a guard cannot be checked.
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
        written = tuple(dict.fromkeys(name for name, _ in written_inputs(program, walk(program))))
        return cls(tuple(inputs), outputs, tuple(conditions), has_identity_check, written)

    def renamed(self, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Signature:
        """Return the same signature with new names. Names that are not in the mappings are unchanged."""

        def new(name: str) -> str:
            return inputs.get(name, name)

        return dataclasses.replace(
            self,
            inputs=tuple(dataclasses.replace(each, name=new(each.name)) for each in self.inputs),
            outputs=tuple(
                dataclasses.replace(each, name=outputs.get(each.name, each.name)) for each in self.outputs
            ),
            conditions=tuple(each.renamed(inputs) for each in self.conditions),
            written=tuple(map(new, self.written)),
        )

    def of_inputs(self, names: Collection[str]) -> Signature:
        """Return the signature without the inputs that are not in `names`, and without their conditions."""
        return dataclasses.replace(
            self,
            inputs=tuple(each for each in self.inputs if each.name in names),
            conditions=tuple(
                each for each in self.conditions if all(asked.input in names for asked in each.questions)
            ),
        )

    def check(self, inputs: Mapping[str, torch.Tensor], *, is_in_place: bool = False) -> None:
        """Check the inputs of a call before anything runs: names, dtypes, sizes, ranges and guards.

        `is_in_place` means that the program modifies the inputs themselves, as eager mode does, not copies of
        them.

        Raises:
            InputMismatchError: An input does not fit. The message names the first such input and is a single
                line.
        """
        names = [tensor.name for tensor in self.inputs]
        if unknown := sorted(inputs.keys() - set(names)):
            has = ", ".join(names) or "none"
            raise InputMismatchError(f"the program has no input {unknown[0]!r}; it has {has}")
        sizes: dict[str, tuple[int, str]] = {}
        for wanted in self.inputs:
            given = inputs.get(wanted.name)
            if given is None:
                got = ", ".join(sorted(inputs)) or "none"
                raise InputMismatchError(f"the input {wanted.name!r} is missing; got {got}")
            if plain_name(given.dtype) != wanted.dtype or given.dim() != len(wanted.shape):
                has, needs = (", ".join(map(str, each.shape)) for each in (given, wanted))
                raise InputMismatchError(
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
        """Reject a tensor that is passed for two inputs if `forward` depends on `x is y`."""
        names = {id(tensor): name for name, tensor in inputs.items()}
        if len(names) == len(inputs) or not self.has_identity_check:
            return
        again, first = next(
            (name, names[id(tensor)]) for name, tensor in inputs.items() if names[id(tensor)] != name
        )
        raise InputMismatchError(
            f"the inputs {again!r} and {first!r} are the same tensor object, but the program was exported "
            f"with different ones: pass `{first}.clone()`"
        )

    def _check_written(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Reject inputs that the program writes into if they are expanded or share memory with another input.

        The program writes into copies, which do not overlap, so its results would differ.
        """
        memory = {name: storage_identity(tensor) for name, tensor in inputs.items()} if self.written else {}
        for name in self.written:
            tensor = inputs[name]
            if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
                raise InputMismatchError(f"the program writes into `{name}`, which is expanded: pass a clone")
            if other := next((key for key in memory if key != name and memory[key] == memory[name]), None):
                raise InputMismatchError(
                    f"the program writes into `{name}`, which shares memory with `{other}`: pass a clone"
                )

    def _check_conditions(self, inputs: Mapping[str, torch.Tensor]) -> None:
        def answer(question: Question) -> int | float | bool:
            return answer_of(question, inputs[question.input])

        for condition in self.conditions:
            if not condition.holds(answer):
                found = " and ".join(answer_text(asked, answer(asked)) for asked in condition.questions)
                raise InputMismatchError(f"{found}, but the program needs {condition.reason}")

    def _check_size(
        self, found: str, size: int, dimension: Dimension, sizes: dict[str, tuple[int, str]]
    ) -> None:
        if not dimension.is_checked:
            return
        if dimension.symbol is None:
            if size != dimension.plus:
                raise InputMismatchError(f"{found}, but the program expects {dimension.plus}")
            return
        value, rest = divmod(size - dimension.plus, dimension.times)
        if rest:
            raise InputMismatchError(f"{found}, but the program expects {dimension}")
        known = sizes.setdefault(dimension.symbol, (value, found))
        if known[0] != value:
            fits = dimension.times * known[0] + dimension.plus
            raise InputMismatchError(f"{found}, but the program expects {fits}, since {known[1]}")
        if dimension.lower is not None and size < dimension.lower:
            raise InputMismatchError(f"{found}, but the program expects at least {dimension.lower}")
        if dimension.upper is not None and size > dimension.upper:
            raise InputMismatchError(f"{found}, but the program expects at most {dimension.upper}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. `from_dict` reads it."""
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
        """Decode the output of `to_dict` from an untrusted file, or raise a `DocumentError`."""
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
    """Convert a size to a `Dimension`. If it is linear in one symbol, it has the expression's range."""
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
    """Return the part of a size's range that torch's own guards check.

    If the program was captured with a size of 2 or more, the range starts at 2, although the program also
    runs for sizes 0 and 1. torch checks a lower bound only if it is above 2.
    """
    if bounds is None:
        return None, None
    is_checked = bounds.lower is not None and bounds.lower > 2
    return bounds.lower if is_checked else None, bounds.upper


def _is_in_shapes(condition: Condition, shapes: Mapping[str, tuple[Dimension, ...]]) -> bool:
    """Return whether a guard only states that two sizes with the same symbol are equal."""
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


_dimension_from_json = reader_of(Dimension)
_input_from_json = reader_of(InputTensor)
_output_from_json = reader_of(OutputTensor)


def answer_of(question: Question, tensor: torch.Tensor) -> int | float | bool:
    """Return the value of a tensor's property that a guard reads, such as a size."""
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
    """Describe the value of a property for an error message: `` `x` has size 3 in dimension 0``."""
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
