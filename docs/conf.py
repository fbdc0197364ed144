"""The documentation as a site: `make docs` builds it strictly.

The source folder is the repository, so that a link leads to the same file here and in a checkout. The sidebar
has the pages that docs/index.md links to, in its order.
"""

import re
import shutil
from pathlib import Path

project = "fakexport"
copyright = "the fakexport authors"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/zoo/*.md", "docs/notes/*.md", "examples/configs/*.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "benchmarks"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "fakexport"
html_extra_path = ["site"]  # The root of the site leads to docs/index.html.
html_static_path = ["style"]
html_css_files = ["fakexport.css"]
highlight_language = "none"  # A block that names no language is text: help, a drawing, a report.

_SECTION = re.compile(r"^## (?P<caption>.+)\n(?P<body>(?:(?!## ).*\n?)*)", re.MULTILINE)
_PAGE = re.compile(r"\[(?P<title>[^]]+)\]\((?P<path>[^)#:]+)\.md\)")


def sidebar(app, docname, source):
    """Append a hidden table of contents with each page that the index links to, below its heading."""
    if docname != root_doc:
        return
    for section in _SECTION.finditer(source[0]):
        pages = "\n".join(f"{page['title']} <{page['path']}>" for page in _PAGE.finditer(section["body"]))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section['caption']}\n\n{pages}\n```\n"


def schemas(app, exception):
    """Copy the JSON Schemas to `schemas/`, so that editors can load them from the site."""
    folder = Path(app.outdir, "schemas")
    folder.mkdir(exist_ok=True)
    for schema in Path(app.srcdir, "src", "fakexport", "report").glob("*.schema.json"):
        shutil.copy(schema, folder)


def setup(app):
    app.connect("source-read", sidebar)
    app.connect("build-finished", schemas)
    return {"parallel_read_safe": True}
