"""What `program_assembly` relies on."""

from __future__ import annotations

import copy

import pytest
import torch

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.tracing.program_assembly import (
    as_parameter,
    assemble,
    fake_of,
    functional_program,
    guards_code,
    leaf_spec,
    partly_decomposed,
    plain_meta,
    reassemble,
    tree_spec,
)
from tests.forked import run_python


@pytest.mark.parametrize(("offset", "strides"), [(0, (3, 1)), (4, (6, 2))])
def test_a_fake_has_the_sizes_strides_offset_and_device_it_was_given(offset, strides):
    meta = plain_meta((2, 3), strides, offset, torch.bfloat16)

    fake = fake_of(new_fake_mode(), meta, torch.device("cuda:1"), True)

    assert (fake.shape, fake.stride(), fake.storage_offset()) == ((2, 3), strides, offset)
    assert (fake.device, fake.dtype) == (torch.device("cuda:1"), torch.bfloat16)
    assert fake.requires_grad
    assert fake.is_leaf
    assert not fake._is_view()
    assert isinstance(as_parameter(fake), torch.nn.Parameter)


def test_a_fake_that_requires_a_gradient_needs_no_device_guard():
    """Exporting such a fake aborts the interpreter where none is registered; making one must not."""
    code = (
        "import torch\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from fakexport._torch.tracing.program_assembly import fake_of, plain_meta\n"
        "for kind in ('cuda', 'xpu', 'mps'):\n"
        "    meta = plain_meta((2,), (1,), 0, torch.float32)\n"
        "    fake = fake_of(FakeTensorMode(), meta, torch.device(kind), True)\n"
        "    assert fake.requires_grad and fake.device.type == kind\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_structure_is_built_as_torch_does():
    spec = tree_spec(tuple, None, [leaf_spec(), tree_spec(dict, ["a"], [leaf_spec()])])

    assert spec == torch.utils._pytree.tree_structure((1, {"a": 2}))


def test_an_assembled_program_has_no_code_until_it_is_asked_for():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * self.weight

    given = torch.export.export(Scaled(), (torch.ones(4, 3),))
    before = torch.export.exported_program._create_graph_module_for_export

    program = assemble(
        root=torch.nn.Module(),
        graph=copy.deepcopy(given.graph),
        signature=given.graph_signature,
        state_dict=given.state_dict,
        constants={},
        range_constraints={},
        module_call_graph=given.module_call_graph,
        dialects=["ATEN"],
        guards=[],
        meta={},
    )

    assert "_code" not in vars(program.graph_module)
    assert torch.export.exported_program._create_graph_module_for_export is before
    assert program.graph_module.code == given.graph_module.code
    assert torch.equal(program.module()(torch.ones(4, 3)), given.module()(torch.ones(4, 3)))


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


def test_a_reassembled_program_computes_and_guards_like_the_first():
    dims = {"x": {0: torch.export.Dim("n", min=2, max=8)}}
    program = torch.export.export(Twice(), (torch.ones(3, 4),), dynamic_shapes=dims)

    made = reassemble(
        program,
        graph_module=copy.deepcopy(program.graph_module),
        state_dict=program.state_dict,
        constants=program.constants,
        example_inputs=None,
    )

    x = torch.randn(5, 4)
    assert torch.equal(made.module()(x), x * 2)
    assert guards_code(made) == guards_code(program)
    assert made.range_constraints == program.range_constraints
    with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|to be <= 8"):
        made.module()(torch.randn(9, 4))


class Heads(torch.nn.Module):
    def forward(self, x):
        """x: `[batch, sequence, head, dim]`."""
        heads = x.transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
        return attended.contiguous().view(x.shape[0] * x.shape[1], -1)


def test_torch_cannot_merge_the_heads_of_what_it_decomposed_and_ours_gives_the_same():
    x = torch.randn(2, 3, 5, 4)
    program = torch.export.export(Heads(), (x,))
    with pytest.raises(ValueError, match="Cannot view a tensor"):
        program.run_decompositions()

    decomposed = functional_program(program).run_decompositions()

    torch.testing.assert_close(decomposed.module()(x), Heads()(x))
    assert "scaled_dot_product" not in str(decomposed.graph)


def test_only_the_named_and_the_composite_operators_are_decomposed() -> None:
    class Layers(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.linear(x, weight).t()
            return torch.lerp(y, y + 1, 0.5) + torch.nn.functional.mish(y).movedim(0, 1)

    program = torch.export.export(Layers(), (torch.ones(3, 3), torch.ones(3, 3)))
    names = ["aten.mish", "aten.no_such_operator"]
    nodes = partly_decomposed(program, names, ["aten.linear.default"]).graph.nodes
    found = {str(node.target) for node in nodes if node.op == "call_function"}

    assert "aten.linear.default" in found  # composite, but kept
    assert "aten.mish.default" not in found
    assert "aten.movedim.int" not in found  # composite
    assert {"aten.t.default", "aten.lerp.Scalar"} <= found  # neither
