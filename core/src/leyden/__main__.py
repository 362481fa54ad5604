"""``python -m leyden`` is the command ``leyden``."""

import sys

from leyden.cli import main

sys.exit(main())
