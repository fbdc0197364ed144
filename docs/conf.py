"""The documentation as a site: `make docs` builds it strictly.

The source folder is the repository, so that a link leads to the same file here and in a checkout. The sidebar
has the pages that docs/index.md links to, in its order.
"""

import re

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


def setup(app):
    app.connect("source-read", sidebar)
    return {"parallel_read_safe": True}
