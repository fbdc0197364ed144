"""Choose a value for each symbol of a program from `--batch`, `--context`, `--size` and `--bound`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.symbolic_numbers import (
    expression_of,
    finite_bound,
    hint_of,
    size_value,
    unbacked_index,
)
from fakexport.error import InvalidValue
from fakexport.planning.memory.embedding_bounds import TableRead, tables_read
from fakexport.planning.memory.input_dims import InputDim, input_dims, is_cache
from fakexport.planning.memory.size_request import SizeRequest


class BeyondTable(InvalidValue):
    """At this size, the program would read past the last row of an embedding table."""


_MOST_ELEMENTS = 2**62


@dataclass(frozen=True)
class ChosenSizes:
    """A value for each symbol of a program.

    Args:
        values: Name of a symbol -> value.
        batch: The resulting batch; None if no input has a batch.
        context: The resulting context; None if the program has none.
        as_in_example: Input dimensions for which no size was requested, with their sizes in the example
            inputs.
        windows: Dimensions of caches that are assumed to be fixed windows, with their sizes in the example
            inputs.
    """

    values: Mapping[str, int]
    batch: int | None
    context: int | None
    as_in_example: tuple[tuple[InputDim, int], ...]
    windows: tuple[tuple[InputDim, int], ...] = ()

    def valued(self, size: Any) -> int:
        """Return the value of a number or of an expression over the symbols."""
        return size_value(size, self.values)


_ROLES: Mapping[str, tuple[str, ...]] = {"batch": ("batch",), "context": ("context", "cached")}


class ProgramSizes:
    """The dimensions of a program's inputs, and the sizes that the program accepts for them.

    `needed` names symbols that need a value even if the program has no range for them.
    """

    def __init__(self, program: ExportedProgram, *, needed: Collection[str] = ()) -> None:
        self.dims = tuple(_with_lengths(tuple(input_dims(program))))
        self._tables = tables_read(program)
        self._ranges = {
            symbol: (finite_bound(bounds.lower), _least(_bound(bounds.upper), self._tables.get(symbol)))
            for symbol, bounds in program.range_constraints.items()
            if isinstance(symbol, sympy.Symbol)  # Torch also records ranges of derived dimensions.
        }
        known = {symbol.name: bounds[1] for symbol, bounds in self._ranges.items()}
        self._unbacked = {
            name: known.get(name) for name in sorted({*known, *needed}) if unbacked_index(name) is not None
        }
        self._hints: dict[Any, int] = dict(_hints(program))

    def needing(self, names: Collection[str]) -> ProgramSizes:
        """Return a copy that also requires values for these symbols."""
        found = copy.copy(self)
        more = {name: None for name in sorted(names) if unbacked_index(name) is not None}
        found._unbacked = {**more, **self._unbacked}
        return found

    def has_role(self, role: str) -> bool:
        """Return whether any input has a dimension with this role, `batch` or `context`, fixed or not."""
        return any(dim.role in _ROLES[role] for dim in self.dims)

    def is_dynamic(self, role: str) -> bool:
        """Return whether any dimension with this role, `batch` or `context`, is dynamic."""
        return any(dim.role in _ROLES[role] and _symbol(dim) is not None for dim in self.dims)

    def least(self, role: str) -> int:
        """Return the smallest size, at least 1, that the program accepts for dimensions of a role."""
        lowest = 1
        for dim in self.dims:
            if dim.role in _ROLES[role] and (symbol := _symbol(dim)) is not None:
                lower = self._ranges.get(symbol, (None, None))[0] or 1
                lowest = max(lowest, lower + (self._new_tokens if dim.role == "cached" else 0))
        return lowest

    def greatest(self, role: str) -> int | None:
        """Return the largest size that the program accepts for a role such as `batch`, or None."""
        symbols = [_symbol(dim) for dim in self.dims if dim.role in _ROLES[role]]
        bounds = [self._ranges.get(symbol, (None, None))[1] for symbol in symbols if symbol is not None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def chosen(self, request: SizeRequest) -> ChosenSizes:
        """Return a value for each symbol. Dimensions that the request leaves open have the example's size.

        Raises:
            BeyondTable: The program would read past the last row of an embedding table.
            ValueError: The program does not accept a size, fixes it to a different value, or does not have
                the dimension; or a data-dependent size has no maximum.
        """
        asked = dict(self._asked(request))
        values: dict[Any, int] = {}
        for dim, size in asked.items():
            self._set(values, dim, size)
        left = []
        for dim in self.dims:
            symbol = _symbol(dim)
            if symbol is not None and symbol not in values:
                values[symbol] = self._of_example(dim, symbol)
                left.append((dim, values[symbol]))
        windows = tuple((dim, size) for dim, size in asked.items() if self._is_window(dim, request))
        self._refuse_unknown_caches([dim for dim, _ in left], request)
        named = {symbol.name: value for symbol, value in values.items()}
        named.update(self._bounded(request, named))
        return ChosenSizes(
            values=named,
            batch=self._means("batch", values),
            context=self._means("context", values),
            as_in_example=tuple(
                (dim, size) for dim, size in left if not (is_cache(dim.name) and self._is_example(request))
            ),
            windows=windows,
        )

    def _asked(self, request: SizeRequest) -> Iterator[tuple[InputDim, int]]:
        if request.batch is not None:
            yield from self._of_role("batch", request.batch)
        if request.context is not None:
            yield from self._of_role("context", request.context)
        known = {(dim.name, dim.dim): dim for dim in self.dims}
        for (name, index), size in request.dims.items():
            if (name, index) not in known:
                names = ", ".join(dict.fromkeys(str(dim) for dim in self.dims)) or "none"
                raise InvalidValue(
                    f"--size {name}.{index}: the program has no such input dimension; it has {names}"
                )
            yield known[name, index], size

    def _of_role(self, role: str, size: int) -> Iterator[tuple[InputDim, int]]:
        dims = [dim for dim in self.dims if dim.role == role]
        if role == "context":
            self._refuse_free_query(size)
            self._refuse_two_texts(size)
        else:
            self._refuse_two_meanings(size)
        free = [dim for dim in dims if _symbol(dim) is not None]
        cached = [dim for dim in self.dims if role == "context" and dim.role == "cached"]
        if not free and not any(_symbol(dim) is not None for dim in cached):
            fixed = next((dim for dim in (*dims, *cached) if dim.size != self._size_of(dim, size)), None)
            if dims and fixed is None:
                return
            raise InvalidValue(_not_free(role, size, fixed))
        for dim in (*free, *(dim for dim in cached if _symbol(dim) is not None)):
            yield dim, self._size_of(dim, size)

    def _refuse_two_meanings(self, size: int) -> None:
        """Reject a batch if a first dimension that it sets may be a length: it is also another dimension."""
        free = {_symbol(dim): dim for dim in self.dims if dim.role == "batch" and _symbol(dim) is not None}
        inner = {_symbol(dim): dim for dim in self.dims if dim.dim and _symbol(dim) in free}
        if inner and len(free) > 1:
            symbol, dim = next(iter(inner.items()))
            raise InvalidValue(
                f"--batch {size:,}: {free[symbol]} is also {dim}, so it may not be a batch: choose each "
                "dimension with --size NAME.DIM=N"
            )

    def _refuse_free_query(self, size: int) -> None:
        """Reject a context length if both new tokens and cache are dynamic: it could apply to either."""
        free = [dim for dim in self.dims if _symbol(dim) is not None]
        query = next((dim for dim in free if dim.is_query), None)
        cached = next((dim for dim in free if dim.role == "cached"), None)
        if query is not None and cached is not None:
            raise InvalidValue(
                f"--context {size:,}: the new tokens ({query}) and the cache ({cached}) both have "
                "dynamic sizes: choose each with --size NAME.DIM=N"
            )

    def _refuse_two_texts(self, size: int) -> None:
        """Reject a context length if both encoder and decoder have caches: it could apply to either."""
        free = {
            self._example(dim): dim for dim in self.dims if dim.role == "cached" and _symbol(dim) is not None
        }
        if len(free) > 1 and any(dim.name.startswith(("encoder_", "decoder_")) for dim in self.dims):
            one, other = list(free.values())[:2]
            raise InvalidValue(
                f"--context {size:,}: the encoder and the decoder have separate contexts ({one}, "
                f"{other}): choose each with --size NAME.DIM=N"
            )

    def _refuse_unknown_caches(self, left: Sequence[InputDim], request: SizeRequest) -> None:
        """Reject a context other than that of the example inputs if it does not determine a cache's size.

        The caches of DeepSeek-V4 have an entry for every 4 or 128 tokens, and the program does not show this.
        """
        if request.context is None or self._is_example(request):
            return
        tokens = {dim.name for dim in self.dims if dim.role == "cached"}
        own = [dim for dim in left if is_cache(dim.name) and not dim.role and dim.name not in tokens]
        if own:
            raise InvalidValue(
                f"--context {request.context:,}: the number of entries in {own[0]} is unknown for this "
                f"context; choose it with --size {own[0]}=N, as for {len(own):,} sizes of this cache"
            )

    def _is_example(self, request: SizeRequest) -> bool:
        """Return whether the requested context is that of the example inputs, so that their cache fits it."""
        return request.context == self._longest_cache + self._new_tokens

    def _size_of(self, dim: InputDim, context: int) -> int:
        """Return the size of a dimension for a context length. A cache is shorter by the number of new
        tokens.

        A cache with a dynamic size is a fixed window if, in the example inputs, it is shorter than the other
        caches or than the mask implies.
        """
        if dim.role != "cached":
            return self._new_tokens if dim.is_query and self._longest_cache and self._new_tokens else context
        size = context - self._new_tokens
        example = self._example(dim)
        return min(size, example) if example is not None and example < self._longest_cache else size

    def _is_window(self, dim: InputDim, request: SizeRequest) -> bool:
        """Return whether a cache is assumed to be a fixed window for the requested context."""
        if dim.role != "cached" or request.context is None or (dim.name, dim.dim) in request.dims:
            return False
        size, example = request.context - self._new_tokens, self._example(dim)
        return (
            example is not None and example < min(size, self._longest_cache) and size != self._longest_cache
        )

    @functools.cached_property
    def _longest_cache(self) -> int:
        """Number of cached tokens in the example inputs, from the longest cache or from the mask."""
        cached = [self._example(dim) or 0 for dim in self.dims if dim.role == "cached"]
        # A mask covers cached and new tokens, so it is used only if the number of new tokens is known.
        masks = [d for d in self.dims if d.role == "context" and not d.is_query and self._new_tokens]
        return max((*cached, *((self._example(dim) or 0) - self._new_tokens for dim in masks)), default=0)

    @functools.cached_property
    def _new_tokens(self) -> int:
        """Number of tokens that a call adds: the length of the token input if it is fixed, otherwise 0."""
        own = [dim for dim in self.dims if dim.dim == 1 and dim.is_query]
        return next((self._example(dim) or 1 for dim in own if _symbol(dim) is None), 0)

    def _example(self, dim: InputDim) -> int | None:
        symbol = _symbol(dim)
        if symbol is not None:
            return self._hints.get(symbol)
        return dim.size if isinstance(dim.size, int) else None

    def _set(self, values: dict[Any, int], dim: InputDim, size: int) -> None:
        symbol = _symbol(dim)
        if symbol is None:
            if dim.size != size:
                raise InvalidValue(_fixed(dim, size))
            return
        if values.get(symbol, size) != size:
            raise InvalidValue(
                f"{dim} = {size:,}: a dimension that must have the same size was set to {values[symbol]:,}"
            )
        table = self._tables.get(symbol)
        if table is not None and size > table.most:
            raise BeyondTable(
                f"{dim} = {size:,}: the program would read row {table.row_at(size):,} (counted from 0) of "
                f"{table.name}, which has only {table.rows:,} rows"
            )
        lower, upper = self._ranges.get(symbol, (None, None))
        if (lower is not None and size < lower) or (upper is not None and size > upper):
            raise InvalidValue(
                f"{dim} = {size:,} is outside the range that the program accepts: {_range_text(lower, upper)}"
            )
        values[symbol] = size

    def _of_example(self, dim: InputDim, symbol: Any) -> int:
        hint = self._hints.get(symbol)
        if hint is None:
            raise InvalidValue(f"the program has no example size for {dim}: choose it with --size {dim}=N")
        return hint

    def _bounded(self, request: SizeRequest, chosen: Collection[str]) -> Iterator[tuple[str, int]]:
        unknown = {name: bound for name, bound in self._unbacked.items() if name not in chosen}
        for name in request.bounds:
            if name not in unknown:
                has = ", ".join(unknown) or "none"
                raise InvalidValue(
                    f"--bound {name}: the program has no such data-dependent size; it has {has}"
                )
        for name, greatest in unknown.items():
            bound = request.bounds.get(name, greatest)
            if bound is None:
                raise InvalidValue(
                    f"the size {name} is known only at run time: set its maximum with --bound {name}=N"
                )
            yield name, bound

    def _means(self, role: str, values: Mapping[Any, int]) -> int | None:
        found = [dim for dim in self.dims if dim.role == role]
        if role == "context" and not found:
            cached = [dim for dim in self.dims if dim.role == "cached"]
            sizes = [_valued(dim, values) + self._new_tokens for dim in cached]
            return max(sizes, default=None)
        if role == "batch":  # Prefer a dimension that was chosen to one derived from it.
            return next((_valued(dim, values) for dim in sorted(found, key=_is_derived)), None)
        return max((_valued(dim, values) for dim in found), default=None)


def _least(bound: int | None, table: TableRead | None) -> int | None:
    known = [size for size in (bound, None if table is None else table.most) if size is not None]
    return min(known, default=None)


def _with_lengths(dims: Sequence[InputDim]) -> Iterator[InputDim]:
    """Yield the dimensions. A first dimension that is the context, as in `cache_position`, is not a batch."""
    contexts = {_symbol(dim) for dim in dims if dim.role == "context"} - {None}
    for dim in dims:
        yield replace(dim, role="") if dim.role == "batch" and _symbol(dim) in contexts else dim


def _bound(upper: Any) -> int | None:
    """Return a range's maximum as an int. Infinity and torch's largest representable number become None."""
    bound = finite_bound(upper)
    return None if bound is None or bound > _MOST_ELEMENTS else bound


def _hints(program: ExportedProgram) -> Iterator[tuple[Any, int]]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and expression_of(size).is_Symbol:
                hint = hint_of(size)
                if hint is not None:
                    yield expression_of(size), int(hint)


def _symbol(dim: InputDim) -> Any:
    """Return the symbol of a dimension; None for a number and for a size derived from other sizes."""
    return dim.size if isinstance(dim.size, sympy.Symbol) else None


def _is_derived(dim: InputDim) -> bool:
    return not isinstance(dim.size, int) and _symbol(dim) is None


def _valued(dim: InputDim, values: Mapping[Any, int]) -> int:
    return int(dim.size if isinstance(dim.size, int) else dim.size.xreplace(dict(values)))


def _range_text(lower: int | None, upper: int | None) -> str:
    return f"{0 if lower is None else lower:,}.." + ("" if upper is None else f"{upper:,}")


def _fixed(dim: InputDim, size: int) -> str:
    return (
        f"{dim} is {dim.size} in this program, not {size:,}: export the model again with --dynamic {dim} or "
        "--dynamic auto"
    )


def _not_free(role: str, size: int, fixed: InputDim | None) -> str:
    if fixed is not None:
        return f"--{role} {size:,}: {_fixed(fixed, size)}"
    what = "batch dimension" if role == "batch" else "text input"
    return f"--{role} {size:,}: the program has no {what}; use --size NAME.DIM=N"
