"""What is asked of emulated devices, and which other topologies would have answered alike.

Two topologies with devices of the same names are different to a model only where something asks for what is
behind a name: a capability, a memory size, the attention kernel. Where all answers are equal, what the model
did under one is what it does under the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from .topology import Topology

T = TypeVar("T")


class DeviceQuestions:
    """Answers for one topology, compared with those for others.

    Args:
        topology: The devices that are emulated.
        others: Topologies to compare with. Those with other device names are not compared at all.
    """

    def __init__(self, topology: Topology, others: Iterable[Topology] = ()) -> None:
        self.topology = topology
        self.alike = [other for other in others if other.listed == topology.listed]
        """The topologies for which each question so far has the same answer."""

    def ask(self, question: Callable[[Topology], T]) -> T:
        """Return the answer, and drop the topologies that have another one.

        Args:
            question: A function of the topology alone, without effects; its answers are compared with `==`.
        """
        answer = question(self.topology)
        if self.alike:
            self.alike = [other for other in self.alike if _is_answered(question, other, answer)]
        return answer


def _is_answered(question: Callable[[Topology], T], other: Topology, answer: T) -> bool:
    try:
        return question(other) == answer
    except Exception:  # An answer too, and not this one.
        return False
