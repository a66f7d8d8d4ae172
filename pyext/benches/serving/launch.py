"""Starts the processes of ranks, in the group of the process that starts them, so that they end with it.

`torchrun` gives each a session of its own, where they stay on the GPUs when a step is stopped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence

POLL = 0.1
"""Seconds between looks at the processes."""


def environments(ranks: int) -> list[dict[str, str]]:
    """The variables by which torch's ranks find each other, for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    same = {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    return [{**same, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(ranks)]


def run(command: Sequence[str], ranks: int) -> int:
    """Runs a command once for each rank. When one fails the others are ended, which would wait for it.

    :returns: the exit status of the first that failed, or 0.
    """
    usual = {"OMP_NUM_THREADS": "1", **os.environ}
    processes = [subprocess.Popen(command, env={**usual, **own}) for own in environments(ranks)]
    try:
        while True:
            found = [process.poll() for process in processes]
            failed = next((code for code in found if code), 0)
            if failed or None not in found:
                return failed
            time.sleep(POLL)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
