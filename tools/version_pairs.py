"""Replay an upgrade of transformers through `fakexport lock`, and print what it reports at which line.

    python tools/version_pairs.py 5.17.0 hf:gpt2 hf:t5 --with 'huggingface_hub<2'

locks the programs of the older version, which pip puts into a folder of its own, checks them with the
version that is installed, and prints a table in Markdown; docs/ci.md has one. `--with` names what else the
older version needs.
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
    asked = parser.parse_args()
    folder = (_FOLDER / asked.old).resolve()
    project = folder / "project"
    project.mkdir(parents=True, exist_ok=True)
    (project / "fakexport.lock").unlink(missing_ok=True)
    sources = json.dumps(asked.sources)
    (project / "pyproject.toml").write_text(f'[tool.fakexport]\nsources = {sources}\ntarget = "cpu"\n')
    paths = [folder / "transformers", folder / "others"]
    install(paths[0], f"transformers=={asked.old}", "--no-deps")
    if asked.packages:
        install(paths[1], *asked.packages)

    older = os.pathsep.join(map(str, paths))
    run(project, "lock", "--no-progress", environment={**os.environ, "PYTHONPATH": older})
    if f'"{asked.old}"' not in (project / "fakexport.lock").read_text():
        sys.exit(f"the lock is not that of transformers {asked.old}")
    report = json.loads(run(project, "check", "--locked", "--format", "json", "--no-progress"))

    lines = ["| model | line in the new version | what changed |", "|---|---|---|"]
    lines += [row(one) for one in report["reports"]]
    lines += [f"| `{one['source']}` | | not checked: {one['reason']} |" for one in report["refused"]]
    sys.stdout.write("\n".join(lines) + "\n")


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
        return f"| `{report['source']}` | | nothing |"
    span = found[0]["labels"][0]["span"]
    path = span["path"].partition("site-packages/")[2].removeprefix("transformers/models/")
    notes = [note for note in found[0]["notes"] if not note.startswith("locked with")]
    return f"| `{report['source']}` | `{path}:{span['line']}` | {'<br>'.join(notes)} |"


if __name__ == "__main__":
    main()
