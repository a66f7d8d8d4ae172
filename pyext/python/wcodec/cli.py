"""The command ``wcodec``. Exit status: 0 equal or done, 1 difference or damage, 2 error, 130 interrupted, 143 and 129
ended by SIGTERM and SIGHUP."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ._cli import beginning, failure
from ._cli.output import complain, reserve, settle, tell
from ._cli.parser import build_parser
from ._cli.parsing import Refused
from ._cli.signals import Terminated, unwinding
from ._core.errors import WcodecError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
# A shell shows this status for a program that SIGPIPE ended.
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    >>> main(["roundtrip", "no/such/model"])
    2
    """
    reserve()
    beginning.begin()
    try:
        with unwinding():
            status = _run(argv)
            # Now, while it can be dealt with if that fails, and not at interpreter exit.
            sys.stdout is None or sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        status = EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        tell("wcodec: interrupted")
        status = EXIT_INTERRUPTED
    except Terminated as signal:
        tell(f"wcodec: ended by {signal}")
        status = signal.status
    except (WcodecError, OSError, MemoryError) as error:
        text = failure.text_of(error)
        complain("error", text)
        failure.document_of(error, text, EXIT_ERROR, argv)
        status = EXIT_ERROR
    except Exception as error:
        # Never a traceback, which shows what a file says as it is.
        complain("internal error", f"{type(error).__name__}: {error} (report it, with the output of wcodec doctor)")
        failure.document_of(error, f"internal error: {error}", EXIT_ERROR, argv)
        status = EXIT_ERROR
    settle()
    return status


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    try:
        arguments = parser.read(argv)
    except Refused as refused:
        text = refused.message if refused.tip is None else f"{refused.message} ({refused.tip})"
        failure.document_of(refused, text, EXIT_ERROR, argv)
        return EXIT_ERROR
    except SystemExit as stop:
        # It has printed help.
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    if not hasattr(arguments, "run"):
        # Nothing was asked for: as elsewhere an error, that of a script whose variable is empty, but one that helps.
        tell(parser.help_text(False).rstrip("\n"))
        return EXIT_ERROR
    if arguments.check is not None:
        arguments.check(arguments)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
