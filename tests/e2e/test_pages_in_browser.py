"""Pages in a real browser: what a person does with the mouse and without it, and that nothing is loaded."""

import json
import shutil
import subprocess
import sys

import pytest

from fakexport.report import check_document, render_page
from tests.page_reading import HOSTILE
from tests.unit.report.test_pages import names_everywhere

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `browser`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH, such as Debian's package"),
]

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def blocks(): return nn.Sequential(*(Block() for _ in range(6))), (torch.ones(2, 8),)
def branch(): return Branch(), (torch.ones(3),)
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page that each command writes, by its name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "models.py").write_text(MODEL)

    def fakexport(*arguments, code):
        done = subprocess.run(
            [sys.executable, "-m", "fakexport", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr

    fakexport(
        *("check", "models.py:blocks", "--target", "H100", "--target", "2xH100", "--device-map", "balanced"),
        *("--html", "check.html", "--no-progress"),
        code=0,
    )
    fakexport("check", "models.py:branch", "--html", "failure.html", "--no-progress", code=1)
    fakexport("plan", "models.py:blocks", "--target", "H100", "--html", "plan.html", "--no-progress", code=0)
    for name, dtype in (("a", "float32"), ("b", "bfloat16")):
        fakexport(
            "export", "models.py:blocks", "-o", f"{name}.pt2", "--dtype", dtype, "--no-progress", code=0
        )
    fakexport("diff", "a.pt2", "b.pt2", "--html", "diff.html", code=1)
    for name in ("old", "new"):
        lines = [json.dumps(record(n, name)) for n in range(30)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    fakexport("sweep-report", "old.jsonl", "new.jsonl", "-o", "site", code=0)
    (folder / "site" / "index.html").rename(folder / "sweep.html")
    hostile = render_page(check_document(names_everywhere("".join(HOSTILE))))
    (folder / "hostile.html").write_text(hostile, encoding="utf-8")
    return folder


def record(number, name):
    is_bad = number % 5 == 0 or (name == "new" and number == 7)
    found = {"code": "FE201", "severity": "error", "message": "data-dependent branch", "notes": []}
    return {
        "schema": "fakexport.sweep/1",
        "command": f"fakexport check hf:model{number} --target {'cpu' if number % 2 else 'H100'}",
        "status": "fails" if is_bad else "exports",
        "reason": "FE201: data-dependent branch" if is_bad else "",
        "seconds": 30.5 - number,
        "peak_bytes": 2**28 + 2**20 * number,
        "report": {"diagnostics": [found] if is_bad else []},
        "versions": {"torch": "2.12.0" if name == "old" else "2.13.0"},
        "machine": "Linux x86_64",
    }


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, pages):
    """Opens a page; fails at the end if it said something on the console, asked for something, or raised."""
    contexts, said, asked = [], [], []

    def open_page(name, **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((pages / f"{name}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not said
    assert all(url.startswith(pages.as_uri()) and url.endswith(".html") for url in asked), asked


def shown(page, caption, column):
    """The texts of a column of the rows that are shown."""
    table = page.locator("table", has=page.locator("caption", has_text=caption))
    cells = table.locator(f"tbody tr:visible > :nth-child({column})")
    return [text.strip() for text in cells.all_inner_texts()]


@pytest.mark.parametrize("name", ["check", "failure", "plan", "diff", "sweep", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_without_an_error_or_a_request(opened, name, scheme):
    page = opened(name, color_scheme=scheme)

    back = page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.scripts.length") == 1


def test_rows_are_filtered_by_text_and_by_choice(opened):
    page = opened("sweep")
    tools = page.get_by_role("group", name="Filter: One row per check")

    tools.get_by_label("Filter", exact=True).fill("model2")
    assert tools.locator("output").inner_text() == "11 of 30 rows"
    assert all("model2" in text for text in shown(page, "One row per check", 1))
    tools.get_by_label("Filter", exact=True).fill("")
    tools.get_by_label("new: status").select_option("fails")
    assert len(shown(page, "One row per check", 1)) == 7
    tools.get_by_label("options").select_option("--target cpu")
    assert set(shown(page, "One row per check", 2)) == {"--target cpu"}
    tools.get_by_label("change").select_option("worse")
    assert shown(page, "One row per check", 1) == ["hf:model7"]


def test_columns_are_sorted_by_number_and_by_name(opened):
    page = opened("sweep")
    table = page.locator("table", has=page.locator("caption", has_text="One row per check"))
    head = table.get_by_role("columnheader", name="new: seconds")

    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    seconds = [float(text) for text in shown(page, "One row per check", 10)]
    assert seconds == sorted(seconds)
    assert len(seconds) == 30
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    model = table.get_by_role("columnheader", name="model")
    model.get_by_role("button").click()
    assert shown(page, "One row per check", 1) == [f"hf:model{n}" for n in range(30)]
    assert [model.get_attribute("aria-sort"), head.get_attribute("aria-sort")] == ["ascending", "none"]


def test_everything_can_be_done_with_the_keyboard(opened):
    page = opened("sweep")
    table = page.locator("table", has=page.locator("caption", has_text="One row per check"))

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.get_by_role("button", name="Dark mode").get_attribute("aria-pressed") == "true"
    table.get_by_role("button", name="model").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert shown(page, "One row per check", 1)[0] == "hf:model29"
    first = table.locator("tbody summary").first
    first.focus()
    page.keyboard.press("Enter")
    assert table.locator("tbody details").first.get_attribute("open") is not None
    assert "fakexport check hf:model29 --target cpu" in table.locator("tbody tr").first.inner_text()


def test_a_failure_shows_its_line_and_a_block_opens(opened):
    page = opened("failure")
    assert "return x if x.sum() > 0 else -x" in page.locator("details[open] pre").first.inner_text()

    page = opened("check")
    block = page.locator(".tree summary", has_text="0-5").first
    assert "6 × Block" in block.inner_text()
    inside = page.locator('.tree b:text-is("a")').first
    assert not inside.is_visible()
    block.click()
    assert inside.is_visible()


def test_without_script_all_rows_are_there(opened):
    page = opened("sweep", java_script_enabled=False)

    assert len(shown(page, "One row per check", 1)) == 30
    assert page.get_by_role("button").count() == 0
