"""Run the benchmarks that the README and the docs quote: `python -m benchmarks`."""

import sys

from benchmarks import deferred_init, export_time

sys.exit(export_time.main() or deferred_init.main())
