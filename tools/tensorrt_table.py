"""Read which operators Torch-TensorRT converts from its sources, without running them.

    pip download --no-deps torch-tensorrt -d /tmp/trt
    python tools/tensorrt_table.py /tmp/trt/torch_tensorrt-*.whl

Writes src/fakexport/deploy/coverage/tensorrt.toml. The sources are parsed with `ast`. A validator is a Python
function that also inspects the arguments of a call; the table contains only its name.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src" / "fakexport" / "deploy" / "coverage" / "tensorrt.toml"
_CONVERTERS = ("aten_ops_converters", "ops_evaluators", "prims_ops_converters")
_FOLDER = "torch_tensorrt/dynamo/"
_SETS = {"torch_enabled_decompositions": "decomposed", "torch_disabled_decompositions": "kept"}
_REGISTER = "register_torch_trt_decomposition"
_ATTENTION = "ATTENTION_DECOMPOSITION_OPS"
_COMPLEX, _SAFE = "_complex_unpacker", "_ELEMENTWISE_SAFE"
_ABOUT = """\
# Operators that Torch-TensorRT converts. Written by tools/tensorrt_table.py, which reads its sources.
# `converters`: operator -> one text per converter: "dynamic" if it accepts dynamic shapes, else "static";
# then the name of the function that inspects the arguments of a call, if there is one.
# Before, `decomposed` operators are decomposed as torch does, `replaced` ones by Torch-TensorRT's own
# functions, and `kept` ones never. `aten.fill` stands for all overloads of the operator. Afterwards,
# `complex` operators are rewritten for real numbers, if possible with their arguments.
"""


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        parsed = {
            Path(name).stem: ast.parse(files.read(name))
            for name in files.namelist()
            if name.startswith((f"{_FOLDER}conversion/", f"{_FOLDER}lowering/")) and name.endswith(".py")
        }
    converters: dict[str, list[str]] = defaultdict(list)
    for module in _CONVERTERS:
        for name, text in _converters(parsed[module]):
            converters[name].append(text)
    sets = dict(_sets(parsed["_decomposition_groups"]))
    sets["replaced"] = set(_registered(parsed["_decompositions"]))
    sets["kept"] |= set(_attention(parsed["_decompositions"]))
    sets["complex"] = set(_rewritten(parsed["complex_graph_rewrite"]))
    lines = [_ABOUT, f'version = "{wheel.name.split("-")[1]}"', ""]
    for name in ("decomposed", "replaced", "kept", "complex"):
        lines += [f"{name} = [", *(f'    "{operator}",' for operator in sorted(sets[name])), "]", ""]
    lines.append("[converters]")
    lines += [
        f'"{name}" = [{", ".join(f"{chr(34)}{text}{chr(34)}" for text in texts)}]'
        for name, texts in sorted(converters.items())
    ]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _converters(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the operator of each converter, and its text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _name(node.func) != "dynamo_tensorrt_converter":
            continue
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        is_dynamic = getattr(options.get("supports_dynamic_shapes"), "value", False)
        validator = options.get("capability_validator")
        inspected = "" if validator is None else f" {_validator(validator)}"
        name = _operator(node.args[0] if node.args else options["key"])
        if "." in name:
            yield name, f"{'dynamic' if is_dynamic else 'static'}{inspected}"


def _validator(node: ast.expr) -> str:
    return _name(node) or "its arguments"


def _sets(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and (key := _SETS.get(_name(node.target))):
            assert isinstance(node.value, ast.Set)
            yield key, {name for each in node.value.elts if (name := _operator(each))}


def _attention(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and _name(node.targets[0]) == _ATTENTION:
            assert isinstance(node.value, ast.Set)
            yield from map(_operator, node.value.elts)


def _registered(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        for each in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            is_registered = isinstance(each, ast.Call) and _name(each.func) == _REGISTER
            if is_registered and (name := _operator(each.args[0])):
                yield name


def _rewritten(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        listed: list[ast.expr] = []
        if isinstance(node, ast.Call) and _name(node.func) == _COMPLEX:
            listed = node.args
        elif isinstance(node, ast.AnnAssign) and _name(node.target) == _SAFE:
            assert isinstance(node.value, ast.Call)
            assert isinstance(node.value.args[0], ast.Set)
            listed = node.value.args[0].elts
        yield from (name for each in listed if "." in (name := _operator(each)))


def _operator(node: ast.expr) -> str:
    """Return `aten.mul.Tensor` for `torch.ops.aten.mul.Tensor`, or "" for other code."""
    text = ast.unparse(node).removeprefix("torch.ops.")
    is_name = text.replace(".", "").replace("_", "").isalnum()
    return text.removeprefix("_") if is_name and text.startswith("_operator.") else text if is_name else ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
