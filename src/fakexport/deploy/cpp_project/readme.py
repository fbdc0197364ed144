"""The project's README, with the inputs and outputs of its program."""

from __future__ import annotations

from collections.abc import Iterator

from ..signature import Dimension, Signature

_PLACE = "{signature}"


def readme(template: str, signature: Signature) -> str:
    """Return the template's text with the signature filled in."""
    return template.replace(_PLACE, "\n".join(_lines(signature)))


def _lines(signature: Signature) -> Iterator[str]:
    if signature.inputs:
        yield from ("| input | takes |", "|---|---|")
    for tensor in signature.inputs:
        ranges = dict.fromkeys(text for size in tensor.shape if (text := _range(size)))
        kind = f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
        yield f"| `{tensor.name}` | {', '.join((f'`{kind}`', *ranges))} |"
    given = ", ".join(f"`{leaf.name}`" for leaf in signature.outputs if leaf.is_tensor)
    yield from [""] * bool(signature.inputs)
    yield f"Outputs: {given or 'none'}."


def _range(size: Dimension) -> str:
    bounds = [f"at least {size.lower}"] * (size.lower is not None)
    bounds += [f"at most {size.upper}"] * (size.upper is not None)
    return f"`{size}` {' and '.join(bounds)}" if bounds else ""
