"""Runs the benchmarks that README and docs quote: `python -m benchmarks`."""

import sys

from benchmarks.export_time import main

sys.exit(main())
