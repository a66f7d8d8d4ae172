"""Text that appears while a model writes it."""

from __future__ import annotations

from typing import Any

from transformers.generation.streamers import BaseStreamer

from . import output

# Preceding tokens that are decoded again with each new one, since the text of a token depends on those before it.
_CONTEXT = 8
# The placeholder for bytes that are no complete character yet.
_UNFINISHED = "�"


class Stream(BaseStreamer):  # type: ignore[misc]
    """A streamer that ``generate`` of transformers passes each new token to. The text is printed after a head, the
    prompt.

    :param live: whether text is printed as it comes, or at the end.
    """

    def __init__(self, tokenizer: Any, head: str, *, live: bool) -> None:
        self.text = ""
        """The text written so far, without the prompt."""
        self._tokenizer, self._head, self._live = tokenizer, head, live
        self._ids: list[int] = []
        # Tokens before this one have been read; those before the other serve as their context.
        self._read = self._begin = 0
        self._prompt = True
        if live:
            output.stream(head)

    @property
    def tokens(self) -> int:
        """New tokens."""
        return len(self._ids)

    def put(self, value: Any) -> None:
        """Takes the prompt's tokens, then each new one."""
        if self._prompt:
            self._prompt = False
            return
        self._ids += [int(token) for token in value.reshape(-1)]
        piece = self._unread()
        if not piece or piece.endswith(_UNFINISHED):
            return
        self._begin, self._read = max(self._read - _CONTEXT, 0), len(self._ids)
        self.text += piece
        if self._live:
            output.stream(piece)

    def end(self) -> None:
        """Called after the last token."""

    def finish(self, text: str | None = None) -> None:
        """Prints what is still missing of the text, and ends the line.

        :param text: all of it; if left out, as much as has come, of a text that was broken off.
        """
        full_text = self.text + self._unread().rstrip(_UNFINISHED) if text is None else text
        if self._live:
            output.say(full_text[len(self.text) :] if full_text.startswith(self.text) else "")
        elif text is not None or full_text:
            output.say(self._head + full_text)

    def _unread(self) -> str:
        """The text that unread tokens add to those before."""
        ids = self._ids[self._begin :]
        before = self._decoded(ids[: self._read - self._begin])
        return self._decoded(ids)[len(before) :]

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
