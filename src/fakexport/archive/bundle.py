"""Programs that belong together, such as prefill and decode, with their shared weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from torch.export import ExportedProgram

from fakexport.emulation.fake import is_fake
from fakexport.error import InvalidType, InvalidValue
from fakexport.exporting.program import facts_of, flattened

from .manifest import ALONE, Prefix
from .shared_names import SharedWeight, check_method_names, chosen_prefixes
from .sharing import shared_weights


class Bundle(Mapping[str, ExportedProgram]):
    """Programs by method name. Each is a plain `ExportedProgram`. A bundle is immutable.

    Methods share a weight if it is the same tensor in their programs, as in programs exported from the same
    module object, or if it has the same name in the checkpoint (see `prefixes`). Programs that were exported
    or loaded separately have separate tensors. Equal data alone does not make two weights shared, because
    many parameters of a model are all ones.

    Args:
        programs: Programs by method name. A name starts with a letter, followed by letters, digits and `_`.
            Either all programs must be bound, or none.
        prefixes: For a method whose weights have different names in the checkpoint: the prefix in the
            checkpoint and the prefix in the program. With `("encoder.", "")` or `"encoder."`, the program's
            `fc.weight` is `encoder.fc.weight` in the checkpoint. With `("", "model.")`, the program's
            `model.fc.weight` is `fc.weight` in the checkpoint. Default: the prefix that the program had in an
            earlier bundle, or no prefix.
        shared: Groups of weights that are known to be shared, as (method, name) pairs, such as
            `bundle.shared`.

    Raises:
        ValueError: There is no program, or more than 64; a method name is invalid; a prefix is for an unknown
            method, or does not match a weight; only some programs are bound; or two weights that would be
            shared differ in dtype, shape, strides, device or data.
        TypeError: A value is not a program.

    Example:
        >>> import torch
        >>> from fakexport.exporting.capture import export
        >>> model, row = torch.nn.Linear(4, 4), torch.zeros(1, 4)
        >>> bundle = Bundle({"one": export(model, (row,)), "two": export(model, (row.repeat(2, 1),))})
        >>> list(bundle), len(bundle.shared)
        (['one', 'two'], 2)
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        *,
        prefixes: Mapping[str, str | Prefix] | None = None,
        shared: Iterable[SharedWeight] = (),
    ) -> None:
        check_method_names(programs)
        for method, program in programs.items():
            if not isinstance(program, ExportedProgram):
                raise InvalidType(
                    f"the method {method} is a {type(program).__name__}, not an ExportedProgram"
                )
        self._programs = {method: flattened(program) for method, program in programs.items()}
        known = {method: facts_of(program).prefix for method, program in programs.items()}
        weights = {method: program.state_dict for method, program in self._programs.items()}
        self._prefixes = chosen_prefixes(known, prefixes or {}, weights)
        _check_bound(self._programs)
        self._shared = shared_weights(self._programs, self._prefixes, shared) if len(programs) > 1 else ()

    def __getitem__(self, method: str) -> ExportedProgram:
        if method not in self._programs:
            raise KeyError(f"no method {method!r}; the methods are {', '.join(self._programs)}")
        return self._programs[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __repr__(self) -> str:
        state = "bound" if self.is_bound else "without weights"
        return f"Bundle({', '.join(self)}; {state}, {len(self.shared)} weights shared)"

    @property
    def prefixes(self) -> Mapping[str, Prefix]:
        """Prefixes by method, for methods whose weights have different names in the checkpoint."""
        return MappingProxyType(self._prefixes)

    @property
    def shared(self) -> tuple[SharedWeight, ...]:
        """For each shared weight, its (method, name) pairs in the order of the methods."""
        return self._shared

    @property
    def is_alone(self) -> bool:
        """Whether the bundle is a single program that was passed or saved without a method name."""
        return tuple(self) == (ALONE,)

    @property
    def is_bound(self) -> bool:
        return not any(is_fake(tensor) for program in self.values() for tensor in program.state_dict.values())


def _check_bound(programs: Mapping[str, ExportedProgram]) -> None:
    kinds = {method: set(map(is_fake, program.state_dict.values())) for method, program in programs.items()}
    bound = [method for method, kind in kinds.items() if kind == {False}]
    unbound = [method for method, kind in kinds.items() if True in kind]
    if bound and unbound:
        raise InvalidValue(
            f"the weights of {bound[0]} are bound, but the weights of {unbound[0]} are not: bind both"
        )
