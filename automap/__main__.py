"""``python -m automap``, the same as the command ``automap``."""

import sys

from automap.cli import main

if __name__ == "__main__":
    sys.exit(main())
