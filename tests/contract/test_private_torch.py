"""Private torch, and patches of torch, stand in `_torch/` only; each use there has a fact test."""

import ast
from collections.abc import Iterator

import pytest

from tests.contract.source_tree import PACKAGE, ROOT, Module, imports, modules

OUTSIDE = [module for module in modules() if module.room != "_torch"]
INSIDE = [module for module in modules(PACKAGE / "_torch") if not module.name.endswith(".__init__")]


def private_uses(module: Module) -> Iterator[str]:
    """A line for every private name of torch that the module writes."""
    for line, target in imports(module):
        if _is_private_torch(target):
            yield f"{module.path}:{line}: {target}"
    names = _torch_names(module)
    for node in module.nodes:
        chain = _chain(node, names)
        if chain and _is_private(chain.rpartition(".")[2]):
            yield f"{module.path}:{node.lineno}: {chain}"


def patches(module: Module) -> Iterator[str]:
    """A line for every assignment to an attribute of torch, its modules or its classes."""
    names = _torch_names(module)
    for node in module.nodes:
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                chain = _chain(node, names)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
                chain = _chain(owner, names) or (isinstance(owner, ast.Name) and names.get(owner.id))
            case _:
                chain = None
        if chain:
            yield f"{module.path}:{node.lineno}: {ast.unparse(node)}"


def _torch_names(module: Module) -> dict[str, str]:
    """Local names bound by imports from torch, with what each stands for: `F` -> `torch.nn.functional`."""
    bound = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return bound


def _chain(node: ast.AST, names: dict[str, str]) -> str | None:
    """The dotted text of an attribute access that is rooted at torch: `torch.fx._lazy_graph_module`."""
    match node:
        case ast.Attribute(value=ast.Name(id=root), attr=attribute) if root in names:
            return f"{names[root]}.{attribute}"
        case ast.Attribute(value=owner, attr=attribute) if (above := _chain(owner, names)) is not None:
            return f"{above}.{attribute}"
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(attribute)), *_]):
            return _chain(ast.Attribute(value=owner, attr=attribute), names)
    return None


def _is_private_torch(target: str) -> bool:
    package, *parts = target.split(".")
    return package == "torch" and any(map(_is_private, parts))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def test_private_torch_stands_in_its_room():
    found = [line for module in OUTSIDE for line in private_uses(module)]

    assert not found, "private torch outside _torch/:\n" + "\n".join(found)


def test_torch_is_patched_in_its_room():
    found = [line for module in OUTSIDE for line in patches(module)]

    assert not found, "torch patched outside _torch/:\n" + "\n".join(found)


def test_every_private_use_has_a_fact_test():
    facts = modules(ROOT / "tests" / "torch_facts")
    targets = [target + "." for fact in facts for _, target in imports(fact)]

    without = [
        module.name
        for module in INSIDE
        if not any(target.startswith(module.name + ".") for target in targets)
    ]

    assert not without, "no test in tests/torch_facts/ imports\n" + "\n".join(without)


@pytest.mark.parametrize(
    "statement",
    [
        "import torch.fx._lazy_graph_module as lazy",
        "from torch._subclasses import FakeTensorMode",
        "from torch.utils import _pytree",
        "def f():\n    from torch._guards import detect_fake_mode",
        "import torch\ntorch._C",
        "import torch.nn.functional as F\nF._pad(x)",
        "from torch.fx import Node\nNode._rename",
        "import torch\ngetattr(torch, '_C')",
        "import importlib\nimportlib.import_module('torch._inductor')",
    ],
)
def test_a_private_use_is_found(statement):
    module = Module("sample.py", "fakexport.emulation.fake.sample", statement)

    found = list(private_uses(module))

    assert len(found) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "import torch\ntorch.__version__",
        "import torchvision._internal",
        "from fakexport._torch.emulation import device_guard\ndevice_guard._registry",
        "self._torch = 1",
    ],
)
def test_a_public_use_is_left_alone(statement):
    module = Module("sample.py", "fakexport.emulation.fake.sample", statement)

    found = [*private_uses(module), *patches(module)]

    assert not found


@pytest.mark.parametrize(
    "statement",
    [
        "import torch\ntorch.cuda.is_available = f",
        "import torch\ndel torch.cuda.is_available",
        "import torch\nsetattr(torch.cuda, 'is_available', f)",
        "from torch.fx import Node\nNode.users = f",
    ],
)
def test_a_patch_is_found(statement):
    module = Module("sample.py", "fakexport.emulation.fake.sample", statement)

    found = list(patches(module))

    assert len(found) == 1
