"""The page of a rule, for `fakexport explain` and for the docs."""

from __future__ import annotations

from collections.abc import Iterator

from fakexport.rules import Rule, all_rules, rule


def explain(code: str) -> str:
    """Returns the page of a rule as Markdown that also reads well as plain text.

    Args:
        code: Code or name, as `fakexport.rules.rule` takes it.
    Returns:
        Headline, reason, failing model with the command that shows the fault, repair, links;
        ends in one line end.
    Raises:
        ValueError: no such rule; names the nearest codes.
    """
    return "\n\n".join(_sections(rule(code))) + "\n"


def explain_all() -> str:
    """Returns the pages of all rules as one page of Markdown, with a list of them in front."""
    listed = (
        f"- [{known.code}](#{known.code.lower()}-{known.name}): {known.message}" for known in all_rules()
    )
    parts = ["# Rules", "Written by `fakexport explain --all`.", "\n".join(listed)]
    for known in all_rules():
        parts += (f"#{section}" if section.startswith("#") else section for section in _sections(known))
    return "\n\n".join(parts) + "\n"


def _sections(known: Rule) -> Iterator[str]:
    yield f"# {known.code}: {known.name}"
    yield f"    {known.severity}[{known.code}]: {known.message}"
    yield known.why.strip()
    if known.failing_model is not None:
        yield f"## {_TITLES.get(known.fails_on, 'A model that fails')}"
        yield _code_block(known.failing_model)
        yield f"Save it as `model.py` and run {_how_to_run(known)}."
    yield "## How to repair it"
    yield known.how_to_repair.strip()
    if known.repaired_model is not None:
        yield f"## The repaired {'checkpoint' if known.fails_on == 'weights' else 'model'}"
        yield _code_block(known.repaired_model)
    links = (*known.links, *(_EXPORTDB.format(tag) for tag in known.exportdb))
    if links:
        yield "## See also"
        yield "\n".join(f"- <{link}>" for link in links)


_EXPORTDB = "https://docs.pytorch.org/docs/stable/generated/exportdb/{}.html"
_TITLES = {
    "never": "A model that shows it",
    "weights": "A model and a checkpoint that show it",
    "retarget": "A model that shows it",
    "compile": "A model that shows it",
}
_SUFFIXES = {"aoti": ".aoti.pt2", "cpp-project": "", "executorch": ".pte", "onnx": ".onnx"}
_IN_PYTHON = "fe.bind(fe.export(factory), checkpoint())"


def _how_to_run(known: Rule) -> str:
    if known.fails_on == "weights":
        return f"`{_IN_PYTHON}`"
    if known.fails_on == "retarget":
        export = f"fakexport export model.py:factory --target {known.target} -o model.pt2"
        return f"`{export}`, then `fakexport inspect model.pt2 --devices`"
    if known.fails_on == "compile":
        export = f"fakexport export model.py:factory --target {known.target} -o model.pt2"
        out = f"model{_SUFFIXES[known.form or '']}"
        return f"`{export}`, then `fakexport compile model.pt2 --to {known.form} -o {out}`"
    return f"`{_command(known)}`"


def _command(known: Rule) -> str:
    dynamic = "".join(f" --dynamic {dim}={range_}" for dim, range_ in (known.dynamic or {}).items())
    strict = " --strict" if known.is_strict else ""
    return f"fakexport check model.py:factory --target {known.target}{dynamic}{strict}"


def _code_block(source: str) -> str:
    return f"```python\n{source.strip()}\n```"
