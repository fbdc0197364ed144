"""Draw what the first check in docs/quickstart.md prints: run `python tools/report_picture.py`."""

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "report.svg"
WIDTH = 120
_MODEL = re.compile(r"^```python\n(?P<code># model\.py\n.*?)^```$", re.DOTALL | re.MULTILINE)
_CHECK = re.compile(r"^\$ (?P<command>fakexport check .*)$", re.MULTILINE)
_STYLES = (
    (r"error\[FE\d+\]:.*|fails at \w+", "bold red"),
    (r"(?m)\^{3,}.*$", "red"),
    (r"(?m)^    = fix:.*$", "green"),
    (r"(?m)^\$ .*$", "bold"),
    (r"(?m)^(?: *-->| *\d+ \||note:).*$", "cyan"),
)


def report() -> str:
    """Return the command and its output for the model of the page."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    model, check = _MODEL.search(page), _CHECK.search(page)
    assert model, "docs/quickstart.md has no model.py"
    assert check, "docs/quickstart.md has no check"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(model["code"], encoding="utf-8")
        command = [sys.executable, "-m", *check["command"].split(), "--no-progress"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        where = f"{Path(folder).resolve()}/"
    assert done.returncode == 1, done.stderr
    return f"$ {check['command']}\n{done.stdout}".replace(where, "")


def drawn(text: str) -> str:
    """Return the text as an SVG image of a terminal."""
    styled = Text(text.rstrip())
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(styled, soft_wrap=False)
    return console.export_svg(title="fakexport", unique_id="report")


if __name__ == "__main__":
    PICTURE.write_text(drawn(report()), encoding="utf-8")
