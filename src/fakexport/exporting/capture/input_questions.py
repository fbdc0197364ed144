"""Add guards for properties of inputs that `forward` reads during a trace.

A property of a computed tensor depends on the inputs from which it was computed: `x.t().is_contiguous()`
depends on the strides of `x`. The guard then checks this property of each of these inputs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.operator_registry import HigherOrderOperator
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.tensor_questions import (
    Property,
    TensorQuestions,
    has_property,
    in_inference_mode,
    inference_mode_questions,
    node_of,
)
from fakexport.exporting.guards import Asked, asked_guards, inference_mode_guard
from fakexport.models.sources import patched_forward

_LAYOUT: tuple[Property, ...] = ("strides",)
_DERIVED: Mapping[Property, tuple[Property, ...]] = {
    "contiguous": _LAYOUT, "channels_last": _LAYOUT, "channels_last_3d": _LAYOUT, "strides": _LAYOUT,
    "offset": ("strides", "offset"), "storage": ("storage",), "is_view": ("is_view",),
    "requires_grad": ("requires_grad",), "is_leaf": ("requires_grad",), "is_inference": ("is_inference",),
    "is_conj": ("is_conj",), "is_neg": ("is_neg", "is_conj"),
}  # fmt: skip
_OF_EVERY_INPUT: tuple[Property, ...] = ("strides", "offset", "requires_grad", "is_conj", "is_neg")
"""Properties to guard if the trace does not show which ones `forward` reads. TorchDynamo fails if `forward`
reads any other property.
"""
_NOT_IN_A_PLACE = re.compile(r"[^A-Za-z0-9_.:/ -]")
_REPLACED_GETTERS = frozenset({"grad_fn"})
"""Getters that `autograd_questions` replaces during the trace. User code calls the replacements."""
_OWN = f"{__name__.partition('.')[0]}."
# torch's own tracing reads the sizes of each value, which does not affect the program. TorchDynamo compares
# the inputs of a branch with those of an earlier export in the same process.
_OF_TRACES = (
    *("torch.fx.", "torch._subclasses.", "torch.export.", "torch._export.", "torch._functorch."),
    "torch._dynamo.guards",
)


class InputQuestions:
    """The properties of inputs that `forward` reads during one trace.

    Args:
        module: The module. `watched` replaces its `forward`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._inputs: list[Any] = []
        self._index: dict[int, int] = {}
        self._first: list[dict[Property, bool]] = []
        self._sources: dict[Node, frozenset[int]] = {}
        self._found: dict[tuple[int, Property], Asked] = {}
        self._inference_mode = ""
        self._not_copied: list[tuple[Property, Tensor, int, str]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Enter a context for a trace that records the properties of inputs that `forward` reads."""
        if self._module._forward_pre_hooks or self._module._forward_hooks:
            with self._watched_hooks():
                yield
            return
        original: Callable[..., Any] = self._module.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._begin(tree_leaves((args, kwargs)))
            with self._asking():
                return original(*args, **kwargs)

        with patched_forward(self._module, forward):
            yield

    @contextmanager
    def _watched_hooks(self) -> Iterator[None]:
        """Enter a context that also watches the module's own hooks, which run around `forward`."""
        open_calls = ExitStack()

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._begin(tree_leaves((args, kwargs)))
            open_calls.enter_context(self._asking())

        first = self._module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        last = self._module.register_forward_hook(lambda *_: open_calls.close(), always_call=True)
        with open_calls:
            try:
                yield
            finally:
                first.remove()
                last.remove()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._not_copied.clear()
        questions = TensorQuestions(self._ask, self._add_not_copied)
        with questions, inference_mode_questions(self._ask_for_inference_mode):
            yield
        for decides, tensor, version, place in self._not_copied:
            # A copy would not have the new values.
            if tensor._version != version:
                self._add_for(decides, tensor, place)

    def _add_not_copied(self, decides: Property, tensor: Tensor, frame: FrameType | None) -> None:
        if not (_is_of_trace(frame) or tensor.is_inference()):
            self._not_copied.append((decides, tensor, tensor._version, _place(frame)))

    def _ask_for_inference_mode(self, frame: FrameType | None) -> None:
        asking = "" if frame is None else frame.f_globals.get("__name__", "")
        if asking.partition(".")[0] not in ("torch", __name__.partition(".")[0]):
            made = inference_mode_guard(in_inference_mode(), _place(frame))
            self._inference_mode = self._inference_mode or made

    def guards(self, program: ExportedProgram) -> list[str]:
        """Return a guard for each property that was read, with the line that read the property first.

        If the program has operators such as `torch.cond`, guards for all properties are added, because
        TorchDynamo traces the bodies of these operators and does not show which properties they read.
        """
        if any(map(_has_traced_body, program.graph.nodes)):
            self._add_all()
        mode = [self._inference_mode] if self._inference_mode else []
        return [*mode, *asked_guards(program, tuple(self._found.values()))]

    def guards_of_all(self, program: ExportedProgram, args: Any, kwargs: Any) -> list[str]:
        """Return guards on all properties, because a strict trace does not show which ones are read."""
        self._begin(tree_leaves((args, kwargs)))
        self._add_all()
        return self.guards(program)

    def _begin(self, inputs: list[Any]) -> None:
        self._inputs = inputs
        self._index = {id(each): at for at, each in enumerate(inputs) if isinstance(each, Tensor)}
        self._first = [
            {asked: has_property(each, asked) for asked in ("requires_grad", "is_leaf")}
            if isinstance(each, Tensor)
            else {}
            for each in inputs
        ]
        nodes = {node_of(self._inputs[at]): at for at in self._index.values()}
        self._sources = {node: frozenset((at,)) for node, at in nodes.items() if node is not None}

    def _ask(self, asked: Property, tensor: Tensor, frame: FrameType | None) -> None:
        if self._index and not _is_own_question(asked, frame):
            if asked == "is_inference" and id(tensor) not in self._index:
                # Results computed in inference mode are inference tensors.
                self._ask_for_inference_mode(frame)
            self._add_for(asked, tensor, _place(frame))

    def _add_for(self, asked: Property, tensor: Tensor, place: str) -> None:
        if (at := self._index.get(id(tensor))) is not None:
            self._add(asked, (at,), place)
        elif not (asked == "requires_grad" and tensor.requires_grad and not self._has_gradients()):
            for property_ in _DERIVED[asked]:
                self._add(property_, sorted(self._sources_of(tensor)), place)

    def _has_gradients(self) -> bool:
        return any(first.get("requires_grad") for first in self._first)

    def _add_all(self) -> None:
        for asked in _OF_EVERY_INPUT:
            self._add(asked, range(len(self._inputs)), "")

    def _add(self, asked: Property, inputs: Any, place: str) -> None:
        for at in inputs:
            tensor = self._inputs[at]
            if (at, asked) in self._found or not _may_differ(tensor, asked):
                continue
            answer: bool | None = None
            if asked not in ("strides", "offset", "storage"):
                answer = self._first[at].get(asked, None)
                answer = has_property(tensor, asked) if answer is None else answer
            self._found[at, asked] = Asked(at, asked, answer, place)

    def _sources_of(self, tensor: Tensor) -> frozenset[int]:
        """Return the inputs from which a tensor was computed, or all inputs if the graph does not show it."""
        node = node_of(tensor)
        if node is None:
            return frozenset(self._index.values())
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [each for each in current.all_input_nodes if each not in self._sources]
            if current in self._sources or not missing:
                parts = (self._sources[each] for each in current.all_input_nodes)
                self._sources.setdefault(current, frozenset().union(*parts))
                pending.pop()
            else:
                pending += missing
        return self._sources[node]


def _has_traced_body(node: Node) -> bool:
    """Return whether a node runs subgraphs, other than a region of `no_grad` or autocast."""
    return isinstance(node.target, HigherOrderOperator) and not node.target.name().startswith("wrap_with_")


def _may_differ(tensor: Any, asked: Property) -> bool:
    """Return whether the property can have different values for tensors of the same dtype."""
    if not isinstance(tensor, Tensor):
        return False
    if asked == "is_conj":
        return tensor.is_complex()
    if asked in ("is_neg", "requires_grad"):
        return tensor.is_floating_point() or tensor.is_complex()
    return True


def _is_own_question(asked: Property, frame: FrameType | None) -> bool:
    """Return whether tracing code, rather than user code through a replaced getter, reads a property."""
    if _is_of_trace(frame):
        return True
    if frame is None or not frame.f_globals.get("__name__", "").startswith(_OWN):
        return False
    return frame.f_code.co_name not in _REPLACED_GETTERS


def _is_of_trace(frame: FrameType | None) -> bool:
    """Return whether torch's tracing code reads a property, directly or through a function of torch."""
    while frame is not None:
        # TorchDynamo evaluates guards in a namespace without a name.
        asking = frame.f_globals.get("__name__", "torch.")
        if asking.startswith(_OF_TRACES):
            return True
        if not asking.startswith("torch.") or asking.startswith("torch.nn."):
            return False
        frame = frame.f_back
    return False


def _place(frame: FrameType | None) -> str:
    """Return the innermost line outside of torch on the stack, such as `model.py:12`."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    innermost = frame
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = innermost
    if frame is None:
        return ""
    return _NOT_IN_A_PLACE.sub("_", f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}")
