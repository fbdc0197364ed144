"""`python -m tests.wrong_programs` writes the page."""

from . import fixes as fixes
from .case import CASES
from .outcome import of_fakexport, of_stock
from .page import PAGE, render

if __name__ == "__main__":
    PAGE.write_text(render({name: (of_stock(each), of_fakexport(each)) for name, each in CASES.items()}))
