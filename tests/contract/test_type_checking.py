"""What `make lint` checks does not depend on which optional packages an environment has."""

import sys
import tomllib

from tests.contract.source_tree import ROOT, imports, modules

CHECKED_WITH_THEIR_TYPES = {"torch", "typer", "click", "jinja2", "markupsafe", "pytest", "_pytest"}
"""What the extra `lint` installs, with its own requirements."""


def test_mypy_is_told_of_each_optional_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    told = {
        name.removesuffix(".*")
        for entry in settings["overrides"]
        if entry.get("ignore_missing_imports")
        for name in entry["module"]
    }
    imported = {(module.path, name) for module in modules() for _, name in imports(module)}
    known = {"fakexport", *sys.stdlib_module_names, *CHECKED_WITH_THEIR_TYPES}

    assert [
        (path, name)
        for path, name in sorted(imported)
        if name.partition(".")[0] not in known and not any(f"{name}.".startswith(f"{one}.") for one in told)
    ] == []
