"""One process of the sweep: tasks come in as lines, and records go out as lines."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any


class Late(BaseException):
    """A model took too long. No handler of ``Exception`` catches it."""


def work(seconds: float, device: str) -> int:
    """Answers each line with a task by a line with its record."""
    # Models and libraries print too: what they say is no record.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGALRM, _late)
    import torch
    import transformers

    from . import checks

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for line in sys.stdin:
        auto, architecture = json.loads(line)
        of = getattr(transformers, auto)
        check = partial(checks.check, of, architecture, checks.Ways(of, device))
        answers.write(json.dumps({"auto": auto, "architecture": architecture, **_record(check, seconds)}) + "\n")
        answers.flush()
        gc.collect()
    return 0


def _late(*_: Any) -> None:
    raise Late


def _record(check: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return check()
    except Late:
        return {"steps": {"time": f"more than {seconds:.0f} s"}}
    except Exception as error:
        # A fault of the checks themselves.
        return {"steps": {"check": f"{type(error).__name__}: {error}"[:300]}}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
