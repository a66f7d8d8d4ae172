"""The command ``wcodec``. Exit status: 0 equal or done, 1 difference or damage, 2 error, 130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ._cli.parser import build_parser
from ._errors import WcodecError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
# What a shell shows for a program that SIGPIPE ended.
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    >>> main(["roundtrip", "no/such/model"])
    2
    """
    arguments = build_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        # Now, while a closed pipe can still be dealt with, and not at interpreter exit.
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        print("wcodec: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (WcodecError, OSError, MemoryError) as error:
        print(f"wcodec: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
