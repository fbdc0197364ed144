"""Call functions in forked processes, to isolate the side effects of user code. Imports no torch."""

from .forked import forked, why_shared
