"""Trace `torch.tensor(..., device="cuda")` in `forward` as on a machine with that device.

On a machine with the device, `torch.tensor` moves a literal to the device before the trace lifts it as a
constant. Under `avoid_device_init`, the trace lifts a CPU constant and then moves it, which adds one or two
nodes per literal. Seen on torch 2.13.

Source: `torch/csrc/utils/tensor_new.cpp`, NOTE [torch.tensor, lift_fresh, and device movement].
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

_LIFT = torch.ops.aten.lift_fresh_copy.default
_DETACH = torch.ops.aten.detach_.default
_ASSERT = torch.ops.aten._assert_tensor_metadata.default
_MOVES = (
    torch.ops.aten.to.dtype_layout,
    torch.ops.aten.to.device,
    torch.ops.aten._to_copy.default,
)


def fold_lifted_moves(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Put lifted literals on the device that the model requested, and remove the nodes that move them.

    Only a move that `torch.tensor` itself added is removed. Such a node directly follows the lift and only
    specifies a device. A `.to(device)` in the model also specifies the dtype and layout.

    Returns:
        The CPU values, by name, of the constants that became fake tensors on a virtual device.
    """
    constants = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR
    }
    values: dict[str, torch.Tensor] = {}
    is_changed = False
    for lift in program.graph.find_nodes(op="call_function", target=_LIFT):
        placeholder = lift.args[0]
        name = constants.get(placeholder.name)
        move = _constructor_move(lift)
        if name is None or move is None or len(placeholder.users) != 1:
            continue
        is_changed = True
        device = move.kwargs["device"]
        assert isinstance(device, torch.device)  # Checked by `_constructor_move`.
        device = _with_index(device)
        value = program.constants[name]
        values[name] = value
        program.constants[name] = _fake_on(value, device, placeholder.meta["val"])
        for node in (placeholder, lift):
            node.meta["val"] = _fake_on(node.meta["val"], device, node.meta["val"])
        move.replace_all_uses_with(lift)
        for user in [*lift.users]:
            if user is move or user.target is _ASSERT:
                program.graph.erase_node(user)
        if _erase_unused(program, lift):
            del values[name]
    if is_changed:
        program.graph_module.recompile()
    return values


def note_lifted_value(placeholder: Node, constant: torch.Tensor) -> None:
    """Set the attribute `constant` of a placeholder's fake tensor, as torch does for real constants.

    Like torch, this skips buffers, which were not lifted. If the constant is a fake tensor, which has no
    value, the attribute is set to None.
    """
    fake = placeholder.meta.get("val")
    if isinstance(fake, FakeTensor) and fake.constant is not None:
        fake.constant = None if isinstance(constant, FakeTensor) else constant


def _erase_unused(program: ExportedProgram, lift: Node) -> bool:
    """Erase a literal if no node uses it, as export does, and return whether it was erased.

    A literal is unused if the model only reads its value (`.item()`).
    """
    (placeholder,) = lift.all_input_nodes
    chain = [placeholder, lift]
    while len(chain[-1].users) == 1 and next(iter(chain[-1].users)).target is _DETACH:
        chain.append(next(iter(chain[-1].users)))
    if chain[-1].users:
        return False
    for node in reversed(chain):
        program.graph.erase_node(node)
    specs = program.graph_signature.input_specs
    (spec,) = [spec for spec in specs if spec.arg.name == placeholder.name]
    specs.remove(spec)
    del program.constants[spec.target]
    return True


def _constructor_move(lift: Node) -> Node | None:
    """Return the node with which `torch.tensor` or `torch.as_tensor` moves a lifted literal, or None."""
    users = [user for user in lift.users if user.target is not _ASSERT]
    if len(users) != 1 or users[0].target not in _MOVES:
        return None
    move = users[0]
    device = move.kwargs.get("device")
    is_bare = len(move.args) == 1 and all(v is None for key, v in move.kwargs.items() if key != "device")
    is_virtual = isinstance(device, torch.device) and device.type not in ("cpu", "meta")
    return move if is_bare and is_virtual else None


def _with_index(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device(device.type, 0)


def _fake_on(tensor: torch.Tensor, device: torch.device, like: FakeTensor) -> FakeTensor:
    mode: FakeTensorMode = like.fake_mode
    with mode:
        return torch.empty_strided(  # type: ignore[return-value]
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        )
