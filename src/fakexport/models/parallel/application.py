"""Shard a model for one rank according to its parallel plan, as transformers' `from_pretrained` does."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.patching import Patches
from fakexport.files.documents import Shard
from fakexport.models.sources import SourceError

from .degrees import DegreeMismatch, Degrees
from .module_plan import module_plan
from .shard import Place, part_of, shard_of
from .styles import install


@dataclass(frozen=True)
class Sharded:
    """The shards by weight, the styles by module and weight, and the plan's rules that match nothing."""

    shards: Mapping[str, Shard]
    styles: Mapping[str, str]
    unused_rules: tuple[str, ...]


def shard_model(model: nn.Module, degrees: Degrees, place: Place) -> Sharded:
    """Replace the weights of a model with the shards of one rank, and add collectives. Modifies the model.

    Raises:
        DegreeMismatch: the plan cannot shard the model over this number of ranks.
        SourceError: the model has no plan, or its plan cannot be applied. The message is a single line.
    """
    plan, unused = _plan(model, degrees)
    styles = _styles()
    modules = dict(model.named_modules(remove_duplicate=False))
    held = dict(model.named_parameters(remove_duplicate=False))
    check_heads(modules, plan, degrees)
    shards: dict[str, Shard] = {}
    for name in (name for name in plan if name in held):
        found = _shard(modules, name, styles[plan[name]], place)
        if found is not None:
            shards[name] = found
    if not shards:
        raise SourceError(
            f"the parallel plan of {type(model).__name__} does not shard any weight: change the plan, or "
            "remove --parallel"
        )
    _keep_ties(modules, held, shards)
    for name in (name for name in plan if name not in held):
        install(modules[name], name, plan[name], styles[plan[name]], place)
    return Sharded(shards, plan, unused)


def _shard(modules: Mapping[str, nn.Module], name: str, style: Any, place: Place) -> Shard | None:
    """Shard a parameter as its style requires. Return the shard; None if the style shards nothing."""
    owner, _, key = name.rpartition(".")
    made: list[Shard] = []

    def distribute_tensor(
        tensor: torch.Tensor, mesh: Place, placements: list[Any], *, src_data_rank: int | None = None
    ) -> torch.Tensor:
        (placement,) = placements
        if placement.is_replicate():
            return tensor
        groups = getattr(placement, "split_factor", 1)
        made.append(shard_of(tensor.shape, placement.dim, place.size(), place.rank, groups))
        last = shard_of(tensor.shape, placement.dim, place.ranks, place.ranks - 1, groups)
        if 0 in last.local_shape:
            size = tensor.shape[placement.dim]
            raise DegreeMismatch(
                f"{name} cannot be sharded over {place.ranks} ranks: its dimension of size {size} leaves "
                "some ranks without a shard"
            )
        return part_of(tensor.detach(), made[0])

    if getattr(style, "shards_expert_dim", False):
        experts = modules[owner].get_parameter(key).shape[0]
        if experts % place.ranks:
            raise DegreeMismatch(f"ep={place.ranks} does not divide the {experts} experts of {owner}")
    places = [_library(".tensor_parallel"), _library(".expert_parallel")]
    with Patches({(module, "distribute_tensor"): distribute_tensor for module in places}):
        try:
            style.validate_param(modules[owner], key, place, parameter_name=name)
            style.shard_param(modules[owner], key, place)
        except DegreeMismatch:
            raise
        except ValueError as error:
            raise SourceError(f"{name} cannot be sharded: {error}") from error
    return made[0] if made else None


def _keep_ties(
    modules: Mapping[str, nn.Module], held: Mapping[str, nn.Parameter], shards: Mapping[str, Shard]
) -> None:
    """Tie the shards of tied weights. Raise an error if the plan shards tied weights differently."""
    first: dict[int, str] = {}
    for name, weight in held.items():
        known = first.setdefault(id(weight), name)
        if known == name:
            continue
        if shards.get(known) != shards.get(name):
            raise SourceError(f"{name} is tied to {known}, but the plan shards the two weights differently")
        owner, _, key = known.rpartition(".")
        part = modules[owner]._parameters[key]
        owner, _, key = name.rpartition(".")
        modules[owner]._parameters[key] = part


def _plan(model: nn.Module, degrees: Degrees) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the style of each module and parameter, and the rules that match nothing."""
    resolve, kind = getattr(model, "_resolve_parallel_plans", None), type(model).__name__
    if resolve is None and not degrees.rules:
        raise SourceError(
            f"{kind} has no tensor-parallel plan of its own: pass one with --parallel tp=N,plan=FILE.json, "
            "or parallel_plan in Python"
        )
    if resolve is None and degrees.expert > 1:
        raise SourceError(f"ep is only supported for transformers models, not for {kind}")
    if resolve is None:
        return module_plan(model, degrees.rules, degrees.origin, _styles()), ()
    tensor_rules = _with_rules(model, degrees)
    if not tensor_rules:
        raise SourceError(f"{kind} has no tensor parallel plan (`base_model_tp_plan` of its config)")
    if degrees.expert > 1 and not model.ep_plan:
        raise SourceError(
            f"{kind} has no expert parallel plan (`base_model_ep_plan` of its config): remove ep"
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise SourceError(f"--parallel does not support quantized weights, which {kind} has")
    config = _library("").DistributedConfig
    try:
        tensor, expert, _ = resolve(config(tp_size=degrees.tensor, ep_size=degrees.expert))
    except ValueError as error:
        raise SourceError(f"the parallel plan of {kind} cannot be applied: {error}") from error
    found = _names(model)
    unused = tuple(rule for rule in tensor_rules if rule not in found)
    return {**tensor, **expert}, unused


def _with_rules(model: nn.Module, degrees: Degrees) -> dict[str, str]:
    """Apply the user's rules to the plan that is stored in the model, and return the new plan."""
    held: Any = model
    plan = dict(held.tp_plan or {})
    if not degrees.rules:
        return plan
    known = _names(model)
    for name, style in degrees.rules:
        if name not in known and name not in plan:
            raise SourceError(
                f"{degrees.origin}: {name} matches no module or parameter of {type(model).__name__}"
            )
        if style is None:
            plan.pop(name, None)
        else:
            plan[name] = style
    try:
        held.tp_plan = plan
    except ValueError as error:
        raise SourceError(f"{degrees.origin}: {error}") from error
    return plan


def _names(model: nn.Module) -> frozenset[str]:
    """Return the names of modules and parameters. As in plans, layer numbers are replaced with `*`."""
    numberless = _library(".parallel_utils").replace_layer_number_by_wildcard
    names = itertools.chain(model.named_modules(), model.named_parameters())
    return frozenset(numberless(name) for name, _ in names)


def _styles() -> Any:
    """Return the parallel styles that transformers defines, by name."""
    for module in (".tensor_parallel", ".expert_parallel"):  # Importing these registers them.
        _library(module)
    return _library(".parallel_utils").ALL_PARALLEL_STYLES


def _library(name: str) -> Any:
    """Import a module of `transformers.distributed`. Raise an error if the installed version lacks it."""
    try:
        return importlib.import_module(f"transformers.distributed{name}")
    except ImportError as error:
        raise SourceError(f"--parallel requires transformers 5.23 or later: {error}") from error


def check_heads(modules: Mapping[str, nn.Module], plan: Mapping[str, str], degrees: Degrees) -> None:
    """Reject degrees that split an attention head: the model might reshape such shards without an error."""
    for name, style in plan.items():
        width = getattr(modules.get(name), "out_features", None)
        if style != "colwise" or not isinstance(width, int):
            continue
        heads = _heads(modules[name.rpartition(".")[0]], width)
        if heads is not None and heads % degrees.tensor:
            raise DegreeMismatch(f"tp={degrees.tensor} does not divide the {heads} heads of {name}")


def _heads(owner: nn.Module, width: int) -> int | None:
    """Return how many attention heads a projection computes; None if its parent specifies no heads."""
    head, heads = getattr(owner, "head_dim", None), getattr(owner, "num_heads", None)
    if isinstance(head, int) and head > 0 and width % head == 0:
        return width // head
    if isinstance(heads, int) and heads > 0 and width % heads == 0:
        return heads
    return None
