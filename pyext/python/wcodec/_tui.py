"""The command ``wcodec-tui``: the terminal inspector, which is native."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ._cli.output import reserve
from ._gpu.devices import nvcomp_folders
from ._native import tui_main
from .cli import EXIT_INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the inspector and returns its exit status.

    >>> main(["no/such/file.wcodec"])
    2
    """
    reserve()
    try:
        return tui_main(["wcodec-tui", *(sys.argv[1:] if argv is None else argv)], nvcomp_folders())
    except KeyboardInterrupt:
        # SIGINT also reached Python's own handler; the inspector has given the terminal back.
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
