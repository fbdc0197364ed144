"""Replay an upgrade of transformers with `fakexport lock`, and print the reported changes and their lines.

    python tools/version_pairs.py 5.17.0 hf:gpt2 hf:t5 --with 'huggingface_hub<2'

This command locks the programs of the older version, which pip installs into a separate folder. Then it
checks the models with the installed version, or with the version of `--new`, and prints a Markdown table, as
in docs/notes/upgrades.md. `--with` names further packages that the two versions need.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_FOLDER = Path("build/version_pairs")
_CHANGED = "FE003"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="version of transformers")
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--with", dest="packages", action="append", default=[], metavar="REQUIREMENT")
    parser.add_argument("--new", help="version of transformers; without it, the installed one")
    asked = parser.parse_args()
    project = (_FOLDER / f"{asked.old}-{asked.new or 'installed'}").resolve()
    project.mkdir(parents=True, exist_ok=True)
    (project / "fakexport.lock").unlink(missing_ok=True)
    sources = json.dumps(asked.sources)
    (project / "pyproject.toml").write_text(f'[tool.fakexport]\nsources = {sources}\ntarget = "cpu"\n')

    run(project, "lock", "--no-progress", environment=with_version(asked.old, asked.packages))
    if f'"{asked.old}"' not in (project / "fakexport.lock").read_text():
        sys.exit(f"the lock is not that of transformers {asked.old}")
    newer = with_version(asked.new, asked.packages) if asked.new else None
    checked = run(project, "check", "--locked", "--format", "json", "--no-progress", environment=newer)
    report = json.loads(checked)

    lines = ["| model | line in the new version | what changed |", "|---|---|---|"]
    lines += [row(one) for one in report["reports"]]
    lines += [f"| `{source}` | | not checked: {reason} |" for source, reason in report["refused"].items()]
    sys.stdout.write("\n".join(lines) + "\n")


def with_version(version: str, packages: list[str]) -> dict[str, str]:
    """Return environment variables with which Python imports that version of transformers."""
    folder = (_FOLDER / version).resolve()
    install(folder / "transformers", f"transformers=={version}", "--no-deps")
    if packages:
        install(folder / "others", *packages)
    return {**os.environ, "PYTHONPATH": f"{folder / 'transformers'}{os.pathsep}{folder / 'others'}"}


def install(folder: Path, *requirements: str) -> None:
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *requirements]
        subprocess.run(command, check=True)


def run(project: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "fakexport", *arguments]
    done = subprocess.run(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    return done.stdout


def row(report: dict[str, Any]) -> str:
    found = [diagnostic for diagnostic in report["diagnostics"] if diagnostic["code"] == _CHANGED]
    if not found:
        other = sorted({diagnostic["code"] for diagnostic in report["diagnostics"]})
        return f"| `{report['source']}` | | {', '.join(other) or 'nothing'} |"
    spans = [label["span"] for label in found[0]["labels"]]
    places = [f"`{Path(span['path']).name}:{span['line']}`" for span in spans]
    notes = [note for note in found[0]["notes"] if not note.startswith("the lock was written with")]
    return f"| `{report['source']}` | {', '.join(places) or 'no line'} | {'<br>'.join(notes)} |"


if __name__ == "__main__":
    main()
