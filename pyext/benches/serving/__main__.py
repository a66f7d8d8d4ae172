"""Run as a folder, `python pyext/benches/serving`."""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the package, and of the modules that benchmarks share. At the end: some have names that others may use.
FOLDER = str(Path(__file__).resolve().parents[1])
sys.path[:] = [p for p in sys.path if p != str(Path(__file__).resolve().parent)]
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from serving.command import main  # noqa: E402

# Processes of an engine's ranks import this module, too.
if __name__ == "__main__":
    sys.exit(main())
