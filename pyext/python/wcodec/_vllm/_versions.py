"""Which versions of vLLM the plug-in is for."""

from __future__ import annotations

import re

from .._errors import UnsupportedError

# The first that it is for, and the first that it is not for: what it implements changes between such versions.
FIRST, BEYOND = (0, 32), (0, 34)


def refused(version: str) -> UnsupportedError | None:
    """Why a version of vLLM is refused; nothing if it is not.

    >>> refused("0.32.0"), refused("0.33.1+cu130")
    (None, None)
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and FIRST <= (int(found[1]), int(found[2])) < BEYOND:
        return None
    last = f"{BEYOND[0]}.{BEYOND[1] - 1}"
    return UnsupportedError(
        f"vLLM {version}: compressed models run with vLLM {FIRST[0]}.{FIRST[1]} to {last} "
        f"(pip install 'vllm>={FIRST[0]}.{FIRST[1]},<{BEYOND[0]}.{BEYOND[1]}', or another version of wcodec)"
    )
