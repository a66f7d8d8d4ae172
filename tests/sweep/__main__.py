"""Run as a folder, `python tests/sweep`."""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the package, in place of its own, whose modules have names that others may use.
FOLDER = Path(__file__).resolve().parent
sys.path[:] = [str(FOLDER.parent), *(p for p in sys.path if Path(p or ".").resolve() != FOLDER)]

from sweep.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
