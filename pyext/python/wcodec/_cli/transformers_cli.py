"""The command ``transformers`` with wcodec imported, so that it knows compressed folders: ``python -m`` this module."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs transformers' command with the arguments of this process."""
    from transformers.cli.transformers import app

    import wcodec  # noqa: F401
    from wcodec._models import running

    # Its own main() asks PyPI first whether there is a newer version.
    sys.argv[0] = "transformers"
    with running.plain_attention():
        app()


if __name__ == "__main__":
    main()
