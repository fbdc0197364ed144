"""Run `fakexport check`. This is the only package that imports all steps of a check.

Names are imported on first use, because a sweep starts processes but does not need torch itself.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names

if TYPE_CHECKING:
    from .archive_check import report_on_archive
    from .conductor import check, inspect, report_on
    from .forked_targets import bundled
    from .target_answer import Wanted

if not TYPE_CHECKING:  # A type checker would accept any misspelled name otherwise.
    __getattr__ = lazy_names(
        __name__,
        {
            "archive_check": "report_on_archive",
            "target_answer": "Wanted",
            "conductor": "check inspect report_on",
            "forked_targets": "bundled",
        },
    )
