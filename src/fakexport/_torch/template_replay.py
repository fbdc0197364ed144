"""Makes the nodes of a template once more, for another module.

The nodes get new names, values in memory of their own, and the scope, stack and counters of the place where
they are. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:track_tensor, _ModuleStackTracer.create_node`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,
    _SympyExprTrackerValue,
    extract_val,
    track_tensor,
)
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_unflatten

from .block_recordings import add_versions
from .block_templates import InnerStack, Template
from .copied_values import CopiedValues
from .fake_tensors import storage_identity
from .observed_tensors import proxy_of, source_of, thunk_of, tracing_paused


def replay(
    template: Template, tracer: Any, module: Any, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]
) -> Any:
    """Make the nodes once more, and return what the call would have returned.

    Args:
        template: The template of a call that could see the same.
        tracer: The tracer of the export.
        module: The module that is called; its scope is open.
        tensors, numbers: What this call can reach, in the order of the recorded one.
    """
    symbols_before = dict(tracer.sympy_expr_tracker)
    with tracing_paused():
        made = _Replay(template, tracer, tracer.submodule_paths[module], tensors, numbers)
        made.make_nodes()
        results = made.results()
        made.leave(results, symbols_before)
    return tree_unflatten(results, template.output_spec)


class _Replay:
    def __init__(
        self,
        template: Template,
        tracer: Any,
        path: str,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[Any],
    ) -> None:
        self._template = template
        self._tracer = tracer
        self._path = path
        self._tensors = tensors
        self._numbers = numbers
        self._made: list[Node] = []
        self._inputs: dict[Node, Any] = {
            node: proxy_of(tracer, tensors[at]).proxy.node  # type: ignore[union-attr]
            if kind == "tensor"
            else source_of(thunk_of(tracer, numbers[at]))
            for node, (kind, at) in template.outside.items()
        }
        pairs = zip(template.tensors, tensors, strict=True)
        self._values = CopiedValues({storage_identity(old): new for old, new in pairs}, template.values)
        self._outer = _texts(tracer.module_stack)
        self._stacks: dict[int, OrderedDict[str, Any]] = {}
        self._fresh: dict[int, Any] = {}

    def make_nodes(self) -> None:
        template, scopes = self._template, self._tracer.node_name_to_scope
        create, counts = self._tracer.graph.create_node, self._tracer.torch_fn_counts
        values = self._values.all_copied([one.meta["val"] for one in template.nodes])
        for one, value in zip(template.nodes, values, strict=True):
            args, kwargs = map_arg(one.args, self._mapped), map_arg(one.kwargs, self._mapped)
            # Arguments that come later are not searched for symbolic numbers, which a template has none of.
            node = create("call_function", one.target, None, None, one.name, one.type_expr)
            node.args, node.kwargs = args, kwargs
            scopes[node.name] = (self._path + one.scope[0], one.scope[1])
            meta = node.meta
            meta.update(one.meta)  # First of all, for the order of the keys.
            meta["nn_module_stack"] = self._stack(one.inner_stack).copy()
            meta["val"] = value
            if "eager_input_vals" in meta:
                meta["eager_input_vals"] = map_aggregate((args, kwargs), _value_of)
            if "torch_fn" in meta:
                number = counts.get(one.function, 0) + one.count
                meta["torch_fn"] = (f"{one.function.__name__}_{number}", one.meta["torch_fn"][1])
            self._made.append(node)
        new = self._template.new_numbers.items()
        self._fresh = {key: number.again(self._tracer, self._mapped) for key, number in new}

    def results(self) -> list[Any]:
        found: list[Any] = []
        for how, what in self._template.outputs:
            found.append(found[what] if how == "again" else self._result(how, what))
        return found

    def leave(self, results: Sequence[Any], symbols_before: dict[Any, Any]) -> None:
        """Change the tracer as the recorded call did."""
        template, tracer, made = self._template, self._tracer, self._made
        for function, count in template.functions.items():
            tracer.torch_fn_counts[function] = tracer.torch_fn_counts.get(function, 0) + count
        if template.functions:
            tracer.torch_fn_metadata = template.last_function
        for name, count in template.calls.items():
            path = f"{self._path}.{name}"
            tracer.num_calls[path] = tracer.num_calls.get(path, 0) + count
        for at, position in template.forced.items():
            thunk = thunk_of(tracer, self._numbers[at])
            thunk.f, thunk.r = None, Proxy(made[position], tracer)
        for at, position in template.renewed.items():
            tracer.tensor_tracker[self._tensors[at]] = _ProxyTensor(Proxy(made[position], tracer), None)
        add_versions(self._tensors, template.written)
        for position, base in template.bases:
            tensor = self._values.tensor(base, self._size)
            track_tensor(tensor, Proxy(made[position], tracer), constant=None, tracer=tracer)
        for (how, what), tensor in zip(template.outputs, results, strict=True):
            if how == "made":
                track_tensor(tensor, Proxy(made[what[0]], tracer), constant=None, tracer=tracer)
        tracer.sympy_expr_tracker.update(symbols_before)
        for symbol, value in template.symbols:
            number = self._size(value)
            tracer.sympy_expr_tracker[symbol] = _SympyExprTrackerValue(thunk_of(tracer, number), number)

    def _mapped(self, node: Node) -> Node:
        at = self._template.refers.get(node)
        return self._made[at] if at is not None else self._inputs[node]

    def _stack(self, inner: InnerStack) -> OrderedDict[str, Any]:
        found = self._stacks.get(id(inner))
        if found is None:
            own = ((self._path + key, (self._path + name, kind)) for key, name, kind in inner)
            found = self._stacks[id(inner)] = OrderedDict((*self._outer, *own))
        return found

    def _size(self, number: Any) -> Any:
        if isinstance(number, int):
            return number
        at = self._template.known_numbers.get(id(number.node))
        return self._fresh[id(number.node)] if at is None else self._numbers[at]

    def _result(self, how: str, what: Any) -> Any:
        if how == "tensor":
            return self._tensors[what]
        if how == "number":
            return self._size(what)
        return what if how == "literal" else self._values.tensor(what[1], self._size)


def _value_of(argument: Any) -> Any:
    """Return what `create_node` keeps of an argument of an operator that needs the strides of its inputs."""
    is_known = isinstance(argument, Node) and "val" in argument.meta
    return extract_val(argument.meta["val"]) if is_known else None


def _texts(stack: Any) -> list[tuple[str, tuple[str, str]]]:
    return [
        (key, (name, f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind))
        for key, (name, kind) in stack.items()
    ]
