"""Writes docs/messages.md from the catalogue of errors (``codec/src/error/code/``); ``--check`` only compares.

python docs/messages.py
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path

from wcodec._core.codes import catalogue

PAGE = Path(__file__).with_name("messages.md")

_HEAD = """\
# Errors by their codes

<!-- Written by docs/messages.py from codec/src/error/code/: change these files, and run it again. -->

A message of wcodec ends with a code, such as `[F102]`.
The code names the cause, and stays the same in all versions. The words of a message may change.
`wcodec explain F102` and `wcodec.explain("F102")` tell the same as this page, and `wcodec explain` lists all codes.
[How to read a message](troubleshooting.md#how-to-read-a-message) tells the rest.

The letter says who has to act, as the class of the exception does in Python:

| letter | class | meaning |
|---|---|---|
| F | `FormatError` | the file is the wrong one, or contradicts itself: get the right file |
| C | `CorruptError` | the file was valid, and its bytes were damaged: restore it, or encode it again |
| U | `UnsupportedError` | this version or installation cannot read it: upgrade, or install what is named |
| O | `FileError` and its subclasses | the operating system or the Hub refused |
| D | `DeviceError` | a GPU, its driver or one of its libraries is missing or refused; [GPU set-up](gpu-setup.md) |
| I | `InputError` | arguments, tensors or models do not fit: change them |
| S | `WcodecError` | it was stopped |

A code with the number 000 stands for all errors without a closer one.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.rstrip("\n")]
    for section, codes in groupby(catalogue().values(), key=lambda code: code.section):
        parts += [f"\n## {section}\n"]
        parts += [f"- **{code.id}:** {code.title}.\n  {code.cause}\n  **Do:** {code.remedy}" for code in codes]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Writes the page, or compares it; exit status 1 if it is another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the page, and write nothing")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
