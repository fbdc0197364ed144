"""Look up operators that a document names: registered operators, and a fixed list of functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from fakexport._torch.kernels import fbgemm_products
from fakexport._torch.kernels.fp8_products import NAMESPACE, register_fp8_products
from fakexport._torch.kernels.grouped_products import TRANSFORMERS, register_grouped_product
from fakexport._torch.kernels.mxfp4_products import PACKED, register_mxfp4_product
from fakexport._torch.operators.operator_registry import (
    OpOverload,
    higher_order_operator,
    operator_text,
    registered_overload,
)
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES
from fakexport._torch.tracing.program_schema import PYTHON_FUNCTIONS, SYMBOLIC_OPERATORS
from fakexport.error import InvalidValue
from fakexport.files.documents import DocumentError

from .operator_names import OF_FBGEMM, OVERLOAD, reach_of, short_name, unregistered

_HIGHER_ORDER = re.compile(r"torch\.ops\.higher_order\.([A-Za-z_]\w*)", re.ASCII)
_HIGHER_ORDER_NAMES = frozenset({
    "associative_scan", "auto_functionalized", "auto_functionalized_v2", "call_torchbind", "cond",
    "flex_attention", "foreach_map", "hints_wrapper", "invoke_subgraph", "map_impl", "out_dtype",
    "run_const_graph", "scan", "strict_mode", "tag_activation_checkpoint", "while_loop",
    "while_loop_stack_output", "with_effects", "wrap", "wrap_activation_checkpoint", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
})  # fmt: skip


class Operators:
    """Look up operators by the names that torch writes, and cache them.

    Without `trust`, operators with side effects are rejected; see `reach_of`.
    """

    def __init__(self, modules: Mapping[str, str] = MappingProxyType({}), *, trust: bool = False) -> None:
        self._modules = modules
        self._trust = trust
        self._known: dict[str, Any] = {}
        self._remembered: dict[str, Any] = {}

    def target(self, name: str) -> Any:
        """Return the operator or function of this name.

        Raises:
            DocumentError: The operator is not registered in this process, no program may call it, or only a
                trusted program may call it.
        """
        found = self._known.get(name)
        if found is None:
            if not self._trust and (reason := reach_of(name)):
                what = f"calls {short_name(name)}, which {reason}; pass --trust only for files you built"
                raise DocumentError(what, is_trust_missing=True)
            found = self._known[name] = _target(name, self._modules)
        return found

    def remembered_function(self, name: str) -> Any:
        """Return the function that a node was traced from: an operator or an object in torch. If it is not
        found, return its name.

        Only modules that are already loaded are searched, without calling a module's `__getattr__`.
        """
        if name not in self._remembered:
            try:
                self._remembered[name] = self.target(name)
            except DocumentError:
                self._remembered[name] = _loaded_name(name)
        return self._remembered[name]


def readable_name(target: Any) -> str:
    """Return the name that a document uses for an operator. Raise if `Operators` would not find it."""
    name = operator_text(target)
    try:
        _target(name, MappingProxyType({}))
    except DocumentError as error:
        raise InvalidValue(f"an archive with this operator could not be loaded: {error.reason}") from error
    return name


def refuse_unregistered(names: Iterable[str], modules: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise a `DocumentError` if some operators are not registered. The error names them and the fix."""
    missing = [name for name in names if _registered(name) is None]
    if missing:
        raise DocumentError(unregistered(missing, modules))


def _registered(name: str) -> OpOverload | None:
    """Return the operator named `acme.scale.default`, or None if it is not registered."""
    found = registered_overload(*name.split("."))
    if found is None and (register := _registrar(name)) is not None:
        register()
        found = registered_overload(*name.split("."))
    return found


def _registrar(name: str) -> Callable[[], None] | None:
    """Return a function that registers fakexport's implementation of the operator, or None if it has none.

    fakexport implements some operators for experts and fp8. If FBGEMM is installed, the result is None for
    FBGEMM's operators, because FBGEMM could not be imported after fakexport has registered them.
    """
    if name == TRANSFORMERS:
        return register_grouped_product
    if name == PACKED:
        return register_mxfp4_product
    if name in OF_FBGEMM:
        is_installed = fbgemm_products.is_fbgemm_installed()
        return None if is_installed else fbgemm_products.register_fbgemm_products
    return register_fp8_products if name.startswith(f"{NAMESPACE}.") else None


def _target(name: str, modules: Mapping[str, str]) -> Any:
    if name in SYMBOLIC_OPERATORS:
        return SYMBOLIC_OPERATORS[name]
    if name in PYTHON_FUNCTIONS:
        return PYTHON_FUNCTIONS[name]
    if match := _HIGHER_ORDER.fullmatch(name):
        found = higher_order_operator(match[1]) if match[1] in _HIGHER_ORDER_NAMES else None
        if found is None:
            raise DocumentError(f"unsupported higher-order operator {match[1][:80]}")
        return found
    if match := OVERLOAD.fullmatch(name):
        overload = _registered(short_name(name))
        if overload is None:
            if match[1] not in TORCH_NAMESPACES:
                raise DocumentError(unregistered([short_name(name)], modules))
            raise DocumentError(
                f"the operator {short_name(name)} is not registered: this torch version does not have it"
            )
        return overload
    raise DocumentError(f"{name[:200]!r} is not an operator")


def _loaded_name(name: str) -> Any:
    first, *rest = name.split(".")
    if first != "torch":
        return name
    found: Any = torch
    for part in rest:
        if not isinstance(found, ModuleType) or part not in vars(found):
            return name
        found = vars(found)[part]
    return name if isinstance(found, ModuleType) or not callable(found) else found
