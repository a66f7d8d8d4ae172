"""``python -m wcodec`` is the command ``wcodec``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
