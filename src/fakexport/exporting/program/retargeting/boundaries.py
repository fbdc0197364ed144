"""Insert nodes that move tensors to the devices of the modules that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node, map_arg

from fakexport._torch.emulation.fake_tensors import FakeTensor, fake_elsewhere
from fakexport._torch.operators.operator_registry import registered_overload
from fakexport._torch.operators.operator_schema import is_mutating
from fakexport.emulation.fake import devices_below
from fakexport.exporting.program.node_names import module_path
from fakexport.exporting.program.retargeting.strict_devices import device_clash

_ASSERT_METADATA = registered_overload("aten", "_assert_tensor_metadata", "default")


class Boundaries:
    """Insert moves for tensors that enter a module on another device, as an export with a device map does.

    The outermost modules that are entirely on one device move their inputs to that device. In other modules,
    an operator runs on the device of its inputs. The inputs are moved only if they are on different devices
    and the operator does not support that.

    Args:
        tensor_devices: Device of each weight and constant by its full name.
        held: The placeholders of weights and constants. These are not moved.
    """

    def __init__(self, tensor_devices: Mapping[str, str], held: Iterable[Node]) -> None:
        self._device_of: dict[str, torch.device | None] = {}
        devices = devices_below(tensor_devices)
        self._uniform = {path: min(found) for path, found in devices.items() if len(found) == 1}
        self._held = frozenset(held)
        self._moved: dict[tuple[Node, torch.device], Node] = {}

    def bring_inputs(self, node: Node, path: str, now: dict[Node, Any], before: dict[Node, Any]) -> None:
        """Insert moves for the inputs of a node that are on the wrong device, and make the node use them."""
        device = self._device(path)
        if device is None and not _is_clashing(node, now):
            return
        home = next((now[n].device for n in node.all_input_nodes if n in self._held), None) or device
        for source in node.all_input_nodes:
            value = now[source]
            if source in self._held or not isinstance(value, FakeTensor):
                continue
            home = home or value.device
            is_scalar = value.device.type == "cpu" and value.dim() == 0
            if value.device == home or is_scalar or self._device(module_path(source)) == home:
                continue
            node.replace_input_with(source, self._move(source, home, node, now, before))
        if is_mutating(node.target):
            for source in node.all_input_nodes:  # Copies of earlier values are outdated.
                self._moved = {key: moved for key, moved in self._moved.items() if key[0] is not source}

    def _device(self, path: str) -> torch.device | None:
        """Return the device of the outermost module around `path` that is entirely on one device.

        Returns None if there is no such module.
        """
        if path not in self._device_of:
            parts = path.split(".")
            prefixes = (".".join(parts[:length]) for length in range(len(parts) + 1))
            found = next((self._uniform[prefix] for prefix in prefixes if prefix in self._uniform), None)
            self._device_of[path] = None if found is None else torch.device(found)
        return self._device_of[path]

    def _move(
        self, source: Node, device: torch.device, node: Node, now: dict[Node, Any], before: dict[Node, Any]
    ) -> Node:
        if (source, device) in self._moved:
            return self._moved[source, device]
        value = now[source]
        with node.graph.inserting_before(node):
            assert _ASSERT_METADATA is not None
            check = node.graph.call_function(
                _ASSERT_METADATA,
                (source,),
                {"dtype": value.dtype, "device": value.device, "layout": value.layout},
            )
            move = node.graph.call_function(
                torch.ops.aten.to.dtype_layout,
                (source,),
                {"dtype": value.dtype, "layout": value.layout, "device": device},
            )
        for made, val in ((check, None), (move, fake_elsewhere(value, device))):
            made.meta = {
                key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta
            }
            made.meta["val"] = now[made] = val
            before[made] = before[source] if made is move else None
        self._moved[source, device] = move
        return move


def _is_clashing(node: Node, now: Mapping[Node, Any]) -> bool:
    args, kwargs = map_arg((node.args, node.kwargs), now.__getitem__)
    return device_clash(node.target, args, kwargs) is not None
