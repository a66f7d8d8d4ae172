"""The command ``wcodec``. Exit status: 0 equal or done, 1 difference or damage, 2 error, 130 interrupted, 143 and 129
ended by SIGTERM and SIGHUP."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ._cli.parser import build_parser
from ._cli.signals import Terminated, unwinding
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
        with unwinding():
            status: int = arguments.run(arguments)
            # Now, while a closed pipe can still be dealt with, and not at interpreter exit.
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python would complain once more when it closes stdout.
        _silence(sys.stdout)
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        print("wcodec: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Terminated as signal:
        try:
            print(f"wcodec: ended by {signal}", file=sys.stderr)
            sys.stdout.flush()
        except OSError:
            # With SIGHUP the terminal may be gone.
            _silence(sys.stdout, sys.stderr)
        return signal.status
    except (WcodecError, OSError, MemoryError) as error:
        print(f"wcodec: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return EXIT_ERROR


def _silence(*streams: TextIO) -> None:
    """Lets what is left to be written go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
