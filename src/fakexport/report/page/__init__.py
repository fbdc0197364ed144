"""Reports as HTML that needs nothing but itself. Does not import torch."""

from fakexport.report.page.check_page import check_document, project_document
from fakexport.report.page.difference_page import archive_difference_document, program_difference_document
from fakexport.report.page.document import (
    Cell,
    Code,
    Column,
    Document,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
)
from fakexport.report.page.plan_page import plan_document
from fakexport.report.page.rendering import render_in_notebook, render_page
