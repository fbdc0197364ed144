"""What a shape environment knows about its symbols. Seen on torch 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv`.
"""

from __future__ import annotations

from typing import Any


class ShapeKnowledge:
    """What the shape environment of one trace knows about its symbols, as a value to compare.

    An environment may add a guard that it already has. For sizes that torch cannot simplify, such as those of
    linear attention in chunks, it does so in every layer. A repeated guard adds no knowledge, so this class
    counts different guards.
    """

    def __init__(self) -> None:
        self._environment: Any = None
        self._read = 0
        self._guards: set[tuple[Any, bool]] = set()

    def of(self, environment: Any) -> tuple[int, ...]:
        """Return counters that change whenever the shape environment learns something new about a symbol."""
        if environment is None:
            return ()
        return (
            environment._version_counter,
            environment._replacements_version_counter,
            self._different_guards(environment),
            len(environment.replacements),
            len(environment.var_to_range),
            environment.num_deferred_runtime_asserts,
            environment.unbacked_symint_counter,
            len(environment.pending_fresh_unbacked_symbols),
            len(environment.divisible),
            len(environment.axioms),
        )

    def _different_guards(self, environment: Any) -> int:
        guards = environment.guards
        if environment is not self._environment or len(guards) < self._read:
            self._environment, self._read = environment, 0
            self._guards.clear()
        if len(guards) > self._read:
            self._guards.update((guard.expr, guard.size_oblivious) for guard in guards[self._read :])
            self._read = len(guards)
        return len(self._guards)
