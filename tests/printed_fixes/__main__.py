"""`python -m tests.printed_fixes` writes the page."""

import warnings

from .harvest import harvest
from .page import PAGE, render

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PAGE.write_text(render(list(harvest())))
