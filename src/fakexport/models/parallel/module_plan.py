"""Parallel plans for models from libraries other than transformers.

The plans have the format that torch's `parallelize_module` accepts.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import nn

from fakexport.error import InvalidValue
from fakexport.files import read_file
from fakexport.files.documents import DocumentError, mapping, optional, parse_json, text
from fakexport.models.sources import SourceError

# torch has one style for both layers and embeddings, but transformers has a separate style for each.
_OF_EMBEDDINGS = {"rowwise_split_input": "embedding_rowwise", "colwise_gather_output": "embedding_colwise"}


def rules_of_styles(plan: Mapping[str, Any]) -> Rules:
    """Convert a plan to rules. The values of the plan are torch's style objects, names of styles, or None.

    Args:
        plan: Pattern to style, such as `{"layers.*.up": ColwiseParallel(), "layers.*.down": "rowwise"}`.
    Raises:
        SourceError: a style or its layouts are not supported. The message is a single line.
    """
    if not plan:
        raise SourceError("parallel_plan has no rules")
    return tuple((pattern, _name_of(pattern, style)) for pattern, style in plan.items())


def _name_of(pattern: str, style: Any) -> str | None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if style is None or isinstance(style, str):
        return style
    known = {
        (ColwiseParallel, Replicate(), Shard(-1)): "colwise",
        (ColwiseParallel, Replicate(), Replicate()): "colwise_gather_output",
        (RowwiseParallel, Shard(-1), Replicate()): "rowwise",
        (RowwiseParallel, Replicate(), Replicate()): "rowwise_split_input",
    }
    kind = type(style)
    if kind not in (ColwiseParallel, RowwiseParallel):
        raise SourceError(
            f"parallel_plan: {pattern}: {kind.__name__} is not supported: use ColwiseParallel, "
            "RowwiseParallel or the name of a style"
        )
    taken, returned = style.input_layouts, style.output_layouts
    name = known.get((kind, *taken, *returned)) if style.use_local_output else None
    if name is None:
        raise SourceError(
            f"parallel_plan: {pattern}: {kind.__name__} with input_layouts={taken}, "
            f"output_layouts={returned} and use_local_output={style.use_local_output} is not supported"
        )
    return name


def module_plan(model: nn.Module, rules: Rules, where: str, known: Container[str]) -> dict[str, str]:
    """Return the style of each module and parameter that the rules match.

    Raises:
        SourceError: a rule matches nothing, has an unknown style, or contradicts another rule.
    """
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    names = [*modules, *(name for name, _ in model.named_parameters(remove_duplicate=False))]
    found: dict[str, str] = {}
    for pattern, style in rules:
        matched = [name for name in names if _is_match(name, pattern)]
        if not matched:
            raise SourceError(f"{where}: {pattern} matches no module or parameter of {type(model).__name__}")
        if style is None or style not in known:
            raise SourceError(f"{where}: {pattern}: unknown style {style!r}")
        for name in matched:
            own = _OF_EMBEDDINGS.get(style, style) if isinstance(modules.get(name), nn.Embedding) else style
            if found.setdefault(name, own) != own:
                raise SourceError(f"{where}: two rules with different styles match {name}")
    for name in [name for name in found if name in modules]:
        for key, _ in modules[name].named_parameters(recurse=False):
            found.setdefault(f"{name}.{key}", found[name])
    return found


def _is_match(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


Rules = tuple[tuple[str, str | None], ...]
"""Pattern and style of each rule, as in transformers' plans. A style of None removes a rule from the model's
plan.
"""

_MOST_BYTES = 1 << 20


def read_plan(path: str | Path) -> Rules:
    """Read the rules in a file such as `{"model.layers.*.mlp.up_proj": "colwise", "lm_head": null}`."""
    try:
        value = mapping(parse_json(read_file(path, most_bytes=_MOST_BYTES)))
        found = tuple((text(name), optional(style, text)) for name, style in value.items())
    except OSError as error:
        raise InvalidValue(f"plan {path}: {error.strerror or error}") from error
    except DocumentError as error:
        raise InvalidValue(
            f"plan {path}: {error}: expected a JSON object that maps module names to styles or null"
        ) from error
    if not found:
        raise InvalidValue(f"plan {path} has no rules")
    return found
