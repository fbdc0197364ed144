"""The site of the documentation: few entries at the top, one first page, pages that begin with a task."""

import importlib.util
import re

import pytest

from tests.contract.source_tree import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("zoo/*.md"), *DOCS.glob("notes/*.md")])
# Pages of measurements begin with what was measured; some are written by programs.
MEASURED = set(re.findall(r"\(([\w/]+)\.md\)", (DOCS / "measured.md").read_text(encoding="utf-8")))
GUIDES = [page for page in DOCS.glob("*.md") if page.stem not in MEASURED]
VERBS = (
    *(
        "Add",
        "Check",
        "Choose",
        "Cut",
        "Decide",
        "Divide",
        "Emulate",
        "Export",
        "Fail",
        "Find",
        "Fix",
        "Generate",
        "Learn",
    ),
    *("Look", "Move", "Plan", "Read", "Repair", "Run", "See", "Store", "Take", "Turn", "Understand", "Use"),
    *("Build", "Write"),
)
WITH_TABS = [page for page in PAGES if "<!-- tabs -->" in page.read_text(encoding="utf-8")]
QUESTIONS = (
    "export without a GPU",
    "ONNX from transformers 5",
    "does Llama fit on an H100",
    "hard-coded device in an exported program",
    "torch.export in CI without a GPU",
    "weight-less pt2",
)


@pytest.fixture(scope="module")
def conf():
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(page):
    return page.read_text(encoding="utf-8")


def test_the_top_of_the_sidebar_has_at_most_seven_entries(conf):
    entries = conf.listed(text_of(DOCS / "index.md"))

    assert 5 <= len(entries) <= 7
    assert {f"docs/{path}" for _, path in entries} >= {page for page in conf.LISTS if page != "docs/index"}


def test_every_page_is_listed_once(conf):
    listed = [
        (ROOT / page).parent.joinpath(f"{path}.md").resolve()
        for page in conf.LISTS
        for _, path in conf.listed(text_of(ROOT / f"{page}.md"))
    ]

    assert len(listed) == len(set(listed))
    assert set(PAGES) - set(listed) == {DOCS / "index.md"}


def test_the_first_page_shows_the_picture_of_the_readme_and_one_path(conf):
    first, readme = text_of(DOCS / "index.md"), text_of(ROOT / "README.md")
    picture = re.search(r"!\[(.+)\]\(docs/(report\.svg)\)", readme)

    assert f"![{picture[1]}]({picture[2]})" in first
    assert first.count("**Start here**") == 1
    assert conf.listed(first)[0][1] == "quickstart"


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_people_ask_has_a_page_that_is_named_like_it(question, conf):
    listed = conf.listed(text_of(DOCS / "questions.md"))

    (path,) = [path for title, path in listed if title.rstrip("?").casefold() == question.casefold()]
    assert (
        text_of(DOCS / f"{path}.md").partition("\n")[0].casefold().rstrip("?") == f"# {question.casefold()}"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_begins_with_a_sentence(page):
    title, first, *_ = text_of(page).split("\n\n")

    assert title.startswith("# ")
    assert not first.startswith(("#", "<!--", "```", "- ", "| ", "!["))


@pytest.mark.parametrize("name", [page.stem for page in GUIDES])
def test_the_first_sentence_of_a_guide_is_what_its_reader_wants_to_do(name):
    first = text_of(DOCS / f"{name}.md").split("\n\n")[1]

    assert first.split()[0].rstrip(",") in VERBS, (
        f"begin with a verb, such as {', '.join(VERBS[:3])}: {first}"
    )


def test_the_glossary_has_at_most_25_terms_in_order():
    terms = re.findall(r"^\| (?!term|---)([^|]+) \|", text_of(DOCS / "glossary.md"), re.MULTILINE)

    assert 15 <= len(terms) <= 25
    assert terms == sorted(terms)


@pytest.mark.parametrize("page", WITH_TABS, ids=lambda page: page.name)
def test_tabs_show_each_block_of_the_page(page, conf):
    text = text_of(page)

    shown = conf.with_tabs(text)

    assert "tabs -->" not in shown
    assert re.findall(r"(?s)^```.*?^```$", shown, re.M) == re.findall(r"(?s)^```.*?^```$", text, re.M)
    for tabs in re.findall(r"(?s)::::\{tab-set\}\n(.*?)^::::$", shown, re.M):
        assert re.findall(r":::\{tab-item\} (.+)", tabs) == ["Command line", "Python"]
        assert re.findall(r"```(\w+)", tabs) == ["console", "python"]
    assert shown.count("::::{tab-set}") == text.count("<!-- tabs -->") > 0
