"""`python -m fakexport`, where the script is not on the path."""

import sys

from fakexport.cli import main

sys.exit(main())
