"""Call functions in forked processes, to isolate the side effects of user code. Does not import torch."""

from .forked import forked, why_shared
