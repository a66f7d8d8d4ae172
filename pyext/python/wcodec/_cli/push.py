"""Subcommand ``wcodec push``: the folder of a compressed model, to the Hugging Face Hub."""

from __future__ import annotations

import argparse

from .._native import safe
from .output import document, prose, put, show_progress


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``wcodec push``."""
    parser.add_argument("folder", metavar="DIR", help="the folder of a compressed model, as encode -o DIR/ writes it")
    parser.add_argument("repo_id", metavar="REPO", help="owner/name on the Hub, made if there is none")
    parser.add_argument("--private", action="store_true", help="make a repository that you alone see")
    parser.add_argument("--revision", metavar="REV", help="the branch to upload to, made if there is none "
                                                          "(default: main)")  # fmt: skip
    parser.add_argument("--token", metavar="TOKEN", help="a token with the right to write (default: HF_TOKEN, or "
                                                         "that of hf auth login)")  # fmt: skip
    parser.add_argument("--message", metavar="TEXT", help="the commit's message")
    parser.add_argument("--json", action="store_true", help="print the repository's address as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def run(arguments: argparse.Namespace) -> int:
    """``wcodec push``"""
    from .._api.push import push

    a = arguments
    url = push(
        a.folder, a.repo_id, private=True if a.private else None, revision=a.revision, token=a.token,
        message=a.message, progress=show_progress(a.quiet or a.json),
    )  # fmt: skip
    if a.json:
        put(document("push", {"url": url}))
    elif not a.quiet:
        prose(f"{safe(a.folder)}: uploaded to {safe(url)}")
    return 0
