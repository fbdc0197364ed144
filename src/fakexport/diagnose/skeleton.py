"""Source text to start from: the fake kernel of an operator, the fake class of a C++ class."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fakexport._torch.operator_schema import OperatorSchema, operator_schema

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


def fake_kernel_skeleton(operator: str, results: str | None = None) -> str:
    """Return a fake kernel in Python and, for an operator of C++, a Meta kernel, made from its schema.

    Args:
        operator: `acme::scale`.
        results: The expression that it returns, if that is certain. Default: it raises, since a guessed
            shape would make a program that is wrong.
    """
    schema = operator_schema(operator)
    if schema is None:
        return (
            f'@torch.library.register_fake("{operator}")\ndef _(*args):\n    {_unfinished(operator, "...")}'
        )
    in_python = _in_python(schema, results)
    return in_python if schema.is_python else f"{in_python}\nor in C++:\n{_in_cpp(schema)}"


def _unfinished(operator: str, example: str) -> str:
    return f'raise NotImplementedError("return what {operator} returns, such as {example}")'


def fake_class_skeleton(class_name: str, methods: Sequence[tuple[str, str]]) -> str:
    """Return a fake class with the methods of a C++ class."""
    lines = [
        f'@torch._library.register_fake_class("{class_name}")',
        f"class Fake{class_name.rpartition('::')[2].strip('_')}:",
        "    def __init__(self, **state):",
        "        vars(self).update(state)",
        "    @classmethod",
        "    def __obj_unflatten__(cls, state):  # state: the pairs that `__obj_flatten__` of C++ returns",
        "        return cls(**dict(state))",
    ]
    for name, schema in methods:
        inputs, _, result = schema.partition("(")[2].rpartition(") -> ")
        names = [re.split(r"[ =]", part.strip())[1] for part in inputs.split(", ")[1:]]
        lines.append(f"    def {name}({', '.join(['self', *names])}):")
        lines.append(f"        ...  # returns {_kind(result)}")
    return "\n".join(lines)


def _kind(result: str) -> str:
    kind = result.strip().split(" ")[0]
    return "None" if kind == "NoneType" else kind


def _in_python(schema: OperatorSchema, results: str | None) -> str:
    names = ", ".join(name for name, _ in schema.arguments)
    sizes = f"{schema.first_tensor}.new_empty(sizes)" if schema.first_tensor else "torch.empty(sizes)"
    values = {"Tensor": sizes, "List[Tensor]": f"[{sizes}]"}
    example = ", ".join(values.get(kind, kind) for kind in schema.results)
    if not schema.results:
        body = "return None"
    else:
        body = _unfinished(schema.name, example) if results is None else f"return {results}"
    return f'@torch.library.register_fake("{schema.name}")\ndef _({names}):\n    {body}'


def _in_cpp(schema: OperatorSchema) -> str:
    namespace, _, name = schema.name.partition("::")
    inputs = ", ".join(f"{_IN_CPP.get(kind, kind)} {argument}" for argument, kind in schema.arguments)
    kinds = [_RESULTS_IN_CPP.get(kind) or _IN_CPP.get(kind, kind) for kind in schema.results]
    result = kinds[0] if len(kinds) == 1 else f"std::tuple<{', '.join(kinds)}>" if kinds else "void"
    unfinished = f'TORCH_CHECK_NOT_IMPLEMENTED(false, "return what {schema.name} returns: at::empty(...)");'
    return (
        f"{result} {name}_meta({inputs}) {{ {unfinished if kinds else ''} }}\n"
        f'TORCH_LIBRARY_IMPL({namespace}, Meta, m) {{ m.impl("{name}", &{name}_meta); }}'
    )
