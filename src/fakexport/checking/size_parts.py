"""Check a model with one program for each part of the sizes that `--dynamic` divides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fakexport.checking.target_answer import Answer
from fakexport.error import InvalidValue
from fakexport.exporting.capture import ExampleSizeError, Request
from fakexport.exporting.guards import InputSizes
from fakexport.files.documents import SizeRange
from fakexport.files.processes import NoAnswer
from fakexport.models import DynamicDim, DynamicDims

Row = tuple[tuple[SizeRange, ...], Answer | NoAnswer]
"""The sizes of a program, and the result of its check."""

_LEAST = 2


@dataclass(frozen=True)
class SizeParts:
    """The programs that divide the sizes of a request among them.

    Args:
        request: A request with several ranges for a dimension.
        dynamic: Its dynamic dimensions.
        ask: Checks requests, each in its own process.
    """

    request: Request
    dynamic: DynamicDims
    ask: Callable[[Sequence[Request]], Sequence[Answer | NoAnswer]]

    def rows(self) -> list[Row]:
        """Return the result of each program, by ascending sizes.

        The first trace shows which sizes of the inputs change together. The example inputs of the other
        programs follow from it. Ranges that one program accepts completely share this program.

        Raises:
            ValueError: the sizes cannot be divided like this.
        """
        merged = self.dynamic.parts(is_merged=True)
        widest = min(merged, key=lambda part: sum(dim.is_fixed for dim in self._divided(part)))
        first, answer = self._first(widest)
        sizes = answer.input_sizes if isinstance(answer, Answer) else None
        if sizes is None:
            return [(self._sizes(first), answer)]
        known = {self._sizes(first): answer}
        if self._is_static(first):
            sizes = sizes.freed(self._sizes(first))
        parts = [part for part in merged if part != widest]
        parts += self._ranges_in(widest) if first in self._ranges_in(widest) else [widest]
        found: list[Row] = []
        for part, each in zip(parts, self._asked(parts, sizes, known), strict=True):
            found += self._settled(part, each, sizes)
        return sorted(found, key=lambda row: [each.min for each in row[0]])

    def _first(self, widest: DynamicDims) -> tuple[DynamicDims, Answer | NoAnswer]:
        """Check the widest part with the model's own example inputs, or a part of it that exports.

        If the example inputs have other sizes, the model is traced with all sizes, and only the shapes of
        this program are used. If no program can have all sizes, and every part is a single size, this is the
        part with the sizes of the example inputs.
        """
        unlimited = replace(widest, dims=tuple(map(self._unlimited, widest.dims)))
        result: tuple[DynamicDims, Answer | NoAnswer] | None = None
        ranges = [part for part in (widest, *self._ranges_in(widest)) if not self._has_fixed(part)]
        every = self.dynamic.parts(is_merged=False)
        single = every if all(map(self._is_static, every)) else []
        for part in (*ranges, unlimited, *single):
            try:
                (answer,) = self.ask([self._request(part)])
            except ExampleSizeError as error:
                if part is unlimited:
                    raise InvalidValue(
                        f"{error}: use larger example inputs, because the trace must show which sizes change "
                        "together, and torch fixes sizes of 1"
                    ) from None
                continue
            if result is None or (isinstance(answer, Answer) and answer.input_sizes is not None):
                result = part, answer
            if isinstance(answer, Answer) and answer.input_sizes is not None:
                break
        assert result is not None
        return result

    def _has_fixed(self, part: DynamicDims) -> bool:
        return any(dim.is_fixed for dim in self._divided(part))

    def _is_static(self, part: DynamicDims) -> bool:
        return all(dim.is_fixed for dim in self._divided(part))

    def _settled(self, part: DynamicDims, answer: Answer | NoAnswer, sizes: InputSizes) -> list[Row]:
        """Return the result of a part, or of each range in it if one program does not accept all of them."""
        smaller = self._ranges_in(part)
        is_good = isinstance(answer, Answer) and answer.verdict.is_exportable and not answer.has_errors
        if is_good or not smaller:
            return [(self._sizes(part), answer)]
        asked = self._asked(smaller, sizes, {})
        return [(self._sizes(each), found) for each, found in zip(smaller, asked, strict=True)]

    def _asked(
        self,
        parts: Sequence[DynamicDims],
        sizes: InputSizes,
        known: Mapping[tuple[SizeRange, ...], Answer | NoAnswer],
    ) -> list[Answer | NoAnswer]:
        """Check parts whose results are not known yet, with example inputs of their sizes."""
        requests = {
            own: replace(self._request(part), example_shapes=sizes.examples(own))
            for part in parts
            if (own := self._sizes(part)) not in known
        }
        found = {**known, **dict(zip(requests, self.ask(list(requests.values())), strict=True))}
        return [found[self._sizes(part)] for part in parts]

    def _request(self, part: DynamicDims) -> Request:
        return replace(self.request, dynamic_shapes=part.texts(), sizes=self._sizes(part))

    def _divided(self, part: DynamicDims) -> list[DynamicDim]:
        """Return the dimensions of a part whose sizes several programs divide."""
        return [own for own, dim in zip(part.dims, self.dynamic.dims, strict=True) if dim.ranges]

    def _sizes(self, part: DynamicDims) -> tuple[SizeRange, ...]:
        named: dict[str, list[DynamicDim]] = {}
        for dim in self._divided(part):
            named.setdefault(dim.symbol or dim.place, []).append(dim)
        return tuple(
            SizeRange(dim.input_name, dim.dim, dim.min or 0, dim.max, tuple(each.place for each in same))
            for dim, *same in named.values()
        )

    def _ranges_in(self, part: DynamicDims) -> list[DynamicDims]:
        """Return the parts with declared ranges that make up `part`; empty if it is a single range."""
        own = self._sizes(part)
        every = self.dynamic.parts(is_merged=False)
        inside = [each for each in every if all(map(_is_within, self._sizes(each), own))]
        return [] if inside == [part] else inside

    def _unlimited(self, dim: DynamicDim) -> DynamicDim:
        places = {each.place for each in self.dynamic.dims if each.ranges}
        return replace(dim, min=_LEAST, max=None) if dim.place in places else dim


def _is_within(one: SizeRange, other: SizeRange) -> bool:
    return one.min in other and (other.max is None or (one.max is not None and one.max in other))
