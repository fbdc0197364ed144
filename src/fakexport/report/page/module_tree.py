"""One tree of the modules of all targets, with the differences between targets marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fakexport.report.page.document import Bar, Branch, Tree
from fakexport.report.quantity import bytes_text, device_names, elements_text

if TYPE_CHECKING:
    from fakexport.exporting.program import ModuleSummary

    Found = Mapping[str, ModuleSummary]

_OPEN_LEVELS = 2
_LEAST_SHARE = 0.005
_CAPTION = (
    "Identical modules share a line, with the numbers of one module. A bar is the part of all weights and "
    "buffers, in bytes, that the modules of a line have."
)
_SEVERAL = (
    " Highlighted: facts that differ between targets, and the devices of a target where they differ from "
    "the line above."
)


def module_tree(found: Found) -> Tree:
    """Return the tree of a model's modules. `found` is the root module by target; there is at least one."""
    caption = _CAPTION + (_SEVERAL if len({root.devices for root in found.values()}) > 1 else "")
    return Tree(caption, (_branch(found, dict.fromkeys(found, ()), max(map(_size, found.values())), 1, 0),))


def _size(root: ModuleSummary) -> int:
    return root.total_bytes


def _branch(
    found: Found, above: Mapping[str, tuple[str, ...] | None], total: int, times: int, depth: int
) -> Branch:
    """Return a module with its submodules.

    Args:
        found: The module by target.
        above: Devices of the parent for each of its targets. None if the parent's line stands for modules on
            different devices: those of a single submodule are then unknown.
        total: Bytes of the whole model.
        times: Number of modules that the parent's line stands for.
        depth: Number of parents.
    """
    first = next(iter(found.values()))
    times *= first.count
    facts: list[str] = []
    marks: list[str] = []
    for text_of in _FACTS:
        texts = {name: text_of(module) for name, module in found.items()}
        if len(set(texts.values())) == 1:
            facts.append(texts.popitem()[1])
        else:
            marks += _by_target(texts)
    devices = {name: () if above[name] is None else module.devices for name, module in found.items()}
    if len(set(devices.values())) == 1:
        facts.append(device_names(devices[next(iter(found))]))
    else:
        moved = {name: device_names(each) for name, each in devices.items() if each and each != above[name]}
        marks += _by_target(moved)
    if len(found) < len(above):
        marks.append(f"only on {', '.join(found)}")
    below = {
        name: None if above[name] is None or (first.count > 1 and len(each) > 1) else each
        for name, each in devices.items()
    }
    share = times * first.total_bytes / total if total else 0.0
    bars = (Bar(share, "weight", f"{share:.1%} of the bytes"),) if share >= _LEAST_SHARE else ()
    return Branch(
        first.name or "(root)",
        tuple(filter(None, facts)),
        tuple(_branch(child, below, total, times, depth + 1) for child in _children(found)),
        depth < _OPEN_LEVELS and first.count == 1,
        tuple(marks),
        bars,
    )


_FACTS: tuple[Callable[[ModuleSummary], str], ...] = (
    lambda module: f"{module.count:,} × {module.class_name}" if module.count > 1 else module.class_name,
    lambda module: f"{elements_text(module.total_parameters)} parameters",
    lambda module: bytes_text(module.total_bytes),
    lambda module: ", ".join(module.dtypes),
    lambda module: f"tied to {', '.join(module.tied_to)}" if module.tied_to else "",
)


def _by_target(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield `cpu, H100: text` for each different text."""
    for text in dict.fromkeys(texts.values()):
        yield f"{', '.join(name for name, other in texts.items() if other == text)}: {text or 'none'}"


def _children(found: Found) -> Iterator[Found]:
    """Yield each submodule by target, in the order of the first target that has it."""
    by_name: dict[str, dict[str, ModuleSummary]] = {}
    for target, module in found.items():
        for child in module.children:
            by_name.setdefault(child.name, {})[target] = child
    yield from by_name.values()
