"""Pages in a real browser: what a person does with the mouse and without it, and that nothing is loaded."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fakexport.report import check_document, render_page
from tests.forked import run_python
from tests.page_reading import HOSTILE
from tests.unit.report.test_pages import names_everywhere

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `browser`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH, such as Debian's package"),
]

PAGES = ["check", "failure", "plan", "diff", "sweep", "hostile"]
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


EACH = """
import json, sys
from fakexport.cli import main

for code, *arguments in json.loads(sys.argv[1]):
    assert main(arguments) == code, arguments
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page that each command writes, by its name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "models.py").write_text(MODEL)

    for name in ("old", "new"):
        lines = [json.dumps(record(n, name)) for n in range(30)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    export = ("export", "models.py:blocks", "--no-progress", "--dtype")
    several = ("--target", "H100", "--target", "2xH100", "--device-map", "balanced")
    commands = [
        (0, "check", "models.py:blocks", *several, "--html", "check.html", "--no-progress"),
        (1, "check", "models.py:branch", "--html", "failure.html", "--no-progress"),
        (0, "plan", "models.py:blocks", "--target", "H100", "--html", "plan.html", "--no-progress"),
        (0, *export, "float32", "-o", "a.pt2"),
        (0, *export, "bfloat16", "-o", "b.pt2"),
        (1, "diff", "a.pt2", "b.pt2", "--html", "diff.html"),
        (0, "sweep-report", "old.jsonl", "new.jsonl", "-o", "site"),
    ]
    done = run_python(EACH, json.dumps(commands), folder=folder)
    assert done.returncode == 0, done.stderr
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
        "output": "",
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


# Texts with a contrast below 4.5, the least of WCAG 2 AA, against the background that is painted below them.
FAINT = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (e) => {
    const color = channels(getComputedStyle(e).backgroundColor);
    return color.length === 4 && color[3] === 0 ? behind(e.parentElement) : color;
  };
  return [...document.querySelectorAll("body *")].filter((e) => {
    const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!hasText || !e.checkVisibility() || e.closest("svg, option")) return false;
    const both = [luminance(channels(getComputedStyle(e).color)), luminance(behind(e))].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05) < 4.5;
  }).map((e) => e.outerHTML.slice(0, 80));
}"""


def picture(page, name):
    """Keep a screenshot if the environment variable names a folder, for people and for CI's artifacts."""
    if folder := os.environ.get("FAKEXPORT_SCREENSHOTS"):
        page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


def shown(page, caption, column):
    """The texts of a column of the rows that are shown."""
    table = page.locator("table", has=page.locator("caption", has_text=caption))
    cells = table.locator(f"tbody tr:visible > :nth-child({column})")
    return [text.strip() for text in cells.all_inner_texts()]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_without_an_error_or_a_request(opened, name, scheme):
    page = opened(name, color_scheme=scheme)

    back = page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate(FAINT) == []
    picture(page, f"{name}-{scheme}")


def test_rows_are_found_by_text_and_filtered_by_choice(opened):
    page = opened("sweep")
    tools = page.get_by_role("group", name="Filter: One row per check")

    page.get_by_label("Search").fill("model2")
    assert tools.locator("output").inner_text() == "11 of 30 rows"
    assert all("model2" in text for text in shown(page, "One row per check", 1))
    page.get_by_label("Search").fill("")
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
    assert page.locator(".tree").count() == 1
    block = page.locator(".tree summary", has_text="0-5").first
    assert "6 × Block" in block.inner_text()
    inside = page.locator('.tree b:text-is("a")').first
    assert not inside.is_visible()
    block.click()
    assert inside.is_visible()


@pytest.mark.parametrize("width", [360, 1280, 1920])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(opened, name, width):
    page = opened(name, viewport={"width": width, "height": 900})

    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")

    picture(page, f"{name}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Source code scrolls, because carets below wrapped lines would point at nothing. Open rows may, too.
    page.evaluate("document.querySelectorAll('th > details').forEach((each) => (each.open = false))")
    wide = page.locator(".wide").evaluate_all(
        "all => all.filter((e) => e.scrollWidth > e.clientWidth).length"
    )
    assert not wide or name == "hostile"


@pytest.mark.parametrize("width", [360, 1280])
def test_carets_are_below_the_code_they_mark(opened, width):
    page = opened("failure", viewport={"width": width, "height": 900})

    code, carets = page.locator("pre.source").first.evaluate(PLACES, ["x.sum() > 0", "^^^^^^^^^^^"])

    assert code == pytest.approx(carets, abs=1)


# Left and right edge of texts in an element.
PLACES = """(pre, texts) => texts.map((text) => {
  const node = pre.firstChild, start = node.data.indexOf(text), range = document.createRange();
  range.setStart(node, start);
  range.setEnd(node, start + text.length);
  const { left, right } = range.getBoundingClientRect();
  return [left, right];
})"""


def test_a_code_leads_to_its_explanation(opened):
    page = opened("failure")
    explanation = page.locator("#FE201")
    assert not explanation.get_by_text("torch.cond").first.is_visible()

    page.get_by_role("link", name="FE201").first.press("Enter")

    page.wait_for_function("document.getElementById('FE201').open")
    assert explanation.locator("pre").first.is_visible()


def test_a_fix_is_copied(opened, pages):
    page = opened("failure", permissions=["clipboard-read", "clipboard-write"])

    page.get_by_role("button", name="Copy").first.press("Enter")

    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "-        return x if x.sum() > 0 else -x\n+        return torch.where(" in copied
    subprocess.run(["git", "apply", "--check"], cwd=pages, input=copied, text=True, check=True)


def test_a_search_shows_only_what_it_finds_and_where_it_is(opened):
    page = opened("check")
    assert not page.get_by_text("0-5").locator("..").get_by_text("ReLU").is_visible()

    page.keyboard.press("/")
    page.keyboard.type("8 × 8")
    assert page.get_by_label("Search").input_value() == "8 × 8"
    assert page.get_by_role("heading", level=2).count() == 0
    page.get_by_label("Search").fill("0-5")

    assert [each for each in page.locator(".tree b").all_inner_texts() if each] == ["(root)", "0-5"]
    assert page.locator("output").first.inner_text() == "1 found"
    page.get_by_label("Search").fill("")
    assert page.get_by_role("heading", name="Verdicts").is_visible()


def test_a_screen_reader_finds_tables_lists_and_names(opened):
    for width in (360, 1280):
        page = opened("check", viewport={"width": width, "height": 900})

        row = page.get_by_role("table", name="One row per target").get_by_role("row").nth(1)
        assert row.get_by_role("rowheader").inner_text().strip() == "H100"
        assert row.get_by_role("cell").first.inner_text() == "exports"
        assert page.get_by_role("region", name="Modules").get_by_role("img").first.is_visible()
        unnamed = page.locator("button, input, select, [role=img]").evaluate_all(
            "all => all.filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"
        )
        assert not unnamed


def test_without_script_all_rows_are_there(opened):
    page = opened("sweep", java_script_enabled=False)

    assert len(shown(page, "One row per check", 1)) == 30
    assert page.get_by_role("button").count() == 0
