"""Source text to start from: the fake kernel of an operator, the fake class of a C++ class."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fakexport._torch.operator_schema import OperatorSchema, operator_schema

__all__ = ["fake_class_skeleton", "fake_kernel_skeleton"]

_IN_CPP = {
    "Tensor": "const at::Tensor&",
    "Optional[Tensor]": "const std::optional<at::Tensor>&",
    "List[Tensor]": "at::TensorList",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "std::string_view",
    "number": "const at::Scalar&",
    "List[int]": "at::IntArrayRef",
    "Optional[int]": "std::optional<int64_t>",
    "Optional[float]": "std::optional<double>",
}
_RESULTS_IN_CPP = {"Tensor": "at::Tensor", "List[Tensor]": "std::vector<at::Tensor>"}


def fake_kernel_skeleton(operator: str) -> str:
    """A fake kernel in Python and, for an operator of C++, a Meta kernel, made from its schema.

    Args:
        operator: `acme::scale`.
    Returns:
        Several lines. Each result is like the first tensor, which is a guess that the reader has to check.
    """
    schema = operator_schema(operator)
    if schema is None:
        return f'@torch.library.register_fake("{operator}")\ndef _(x):\n    return torch.empty_like(x)'
    return _in_python(schema) if schema.is_python else f"{_in_python(schema)}\nor in C++:\n{_in_cpp(schema)}"


def fake_class_skeleton(class_name: str, methods: Sequence[tuple[str, str]]) -> str:
    """A fake class with the methods of a C++ class.

    Args:
        class_name: `acme::Table`.
        methods: Of each method its name and its schema.
    """
    lines = [
        f'@torch._library.register_fake_class("{class_name}")',
        f"class Fake{class_name.rpartition('::')[2].strip('_')}:",
        "    def __init__(self, **state):",
        "        vars(self).update(state)",
        "    @classmethod",
        "    def __obj_unflatten__(cls, state):  # state: the pairs that `__obj_flatten__` of C++ gives",
        "        return cls(**dict(state))",
    ]
    for name, schema in methods:
        inputs, _, result = schema.partition("(")[2].rpartition(") -> ")
        names = [re.split(r"[ =]", part.strip())[1] for part in inputs.split(", ")[1:]]
        lines += [f"    def {name}({', '.join(['self', *names])}):", f"        ...  # gives {_kind(result)}"]
    return "\n".join(lines)


def _kind(result: str) -> str:
    kind = result.strip().split(" ")[0]
    return "None" if kind == "NoneType" else kind


def _in_python(schema: OperatorSchema) -> str:
    names = ", ".join(name for name, _ in schema.arguments)
    empty = f"torch.empty_like({schema.first_tensor})" if schema.first_tensor else "torch.empty(...)"
    values = {"Tensor": empty, "List[Tensor]": f"[{empty}]"}
    results = ", ".join(values.get(kind, "...") for kind in schema.results) or "None"
    return f'@torch.library.register_fake("{schema.name}")\ndef _({names}):\n    return {results}'


def _in_cpp(schema: OperatorSchema) -> str:
    namespace, _, name = schema.name.partition("::")
    inputs = ", ".join(f"{_IN_CPP.get(kind, kind)} {argument}" for argument, kind in schema.arguments)
    kinds = [_RESULTS_IN_CPP.get(kind) or _IN_CPP.get(kind, kind) for kind in schema.results]
    result = kinds[0] if len(kinds) == 1 else f"std::tuple<{', '.join(kinds)}>" if kinds else "void"
    empty = f"at::empty_like({schema.first_tensor})" if schema.first_tensor else "at::empty({...})"
    values = {"Tensor": empty, "List[Tensor]": f"std::vector<at::Tensor>{{{empty}}}"}
    results = ", ".join(values.get(kind, "{}") for kind in schema.results)
    body = f"return {{{results}}};" if len(kinds) > 1 else f"return {results};" if kinds else ""
    return (
        f"{result} {name}_meta({inputs}) {{ {body} }}\n"
        f'TORCH_LIBRARY_IMPL({namespace}, Meta, m) {{ m.impl("{name}", &{name}_meta); }}'
    )
