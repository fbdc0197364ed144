"""The documentation as a site: `make docs` builds it strictly.

The source folder is the repository, so that a link leads to the same file here and in a checkout.
"""

import re
import shutil
from pathlib import Path

project = "fakexport"
copyright = "the fakexport authors"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/zoo/*.md", "docs/notes/*.md", "examples/*/*.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "benchmarks"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "  # Only commands are copied, not what they print.
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = "fakexport"
html_extra_path = ["site"]  # The root of the site leads to docs/index.html.
html_static_path = ["style"]
html_css_files = ["fakexport.css"]
highlight_language = "none"  # A block that names no language is text: help, a drawing, a report.

# Pages that list other pages. The sidebar has the entries of the index, and below each those of its page.
LISTS = (
    "docs/index",
    *(f"docs/{name}" for name in ("questions", "guides", "ship", "reference", "measured", "project")),
)
_ENTRY = re.compile(r"^- .*(?:\n  .*)*", re.MULTILINE)
_PAGE = re.compile(r"\[(?P<title>[^]]+)\]\((?P<path>[^)#:]+)\.md\)")
_TABS = re.compile(r"^<!-- tabs -->\n(?P<tabs>.*?)^<!-- end tabs -->$", re.DOTALL | re.MULTILINE)
_TAB = re.compile(r"^(?P<label>[A-Z][^\n]*):\n\n(?P<block>```\w+\n.*?^```$)", re.DOTALL | re.MULTILINE)


def listed(text):
    """Return the title and the path of each page that a page lists, in order."""
    entries = (entry[0].partition(":")[0] for entry in _ENTRY.finditer(text))
    return [(page["title"], page["path"]) for entry in entries for page in _PAGE.finditer(entry)]


def with_tabs(text):
    """Turn the blocks between `<!-- tabs -->` and `<!-- end tabs -->` into tabs."""

    def tabs(found):
        items = "\n".join(
            f":::{{tab-item}} {tab['label']}\n:sync: {tab['label']}\n\n{tab['block']}\n:::"
            for tab in _TAB.finditer(found["tabs"])
        )
        return f"::::{{tab-set}}\n{items}\n::::"

    return _TABS.sub(tabs, text)


def read(app, docname, source):
    """Add a hidden table of contents to a page that lists other pages, and the tabs to every page."""
    if docname in LISTS:
        pages = "\n".join(f"{title} <{path}>" for title, path in listed(source[0]))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    source[0] = with_tabs(source[0])


def schemas(app, exception):
    """Copy the JSON Schemas to `schemas/`, so that editors can load them from the site."""
    folder = Path(app.outdir, "schemas")
    folder.mkdir(exist_ok=True)
    for schema in Path(app.srcdir, "src", "fakexport", "report").glob("*.schema.json"):
        shutil.copy(schema, folder)


def setup(app):
    app.connect("source-read", read)
    app.connect("build-finished", schemas)
    return {"parallel_read_safe": True}
