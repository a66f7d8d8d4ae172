"""A conversation with a model: messages, and the cache of keys and values of what was said, kept from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _measure
from .._core.errors import InputError
from .._models import running
from . import prompts
from .prompts import Message


class Conversation:
    """Messages of a user and a model, in the form that the tokenizer's chat template gives them.

    Without a template each text is continued by itself.

    :param name: the model's name, for messages of errors.
    :param system: the system message.
    :param options: for ``generate``.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, system: str | None, options: dict[str, Any]) -> None:
        self._model, self._tokenizer, self._name, self._options = model, tokenizer, name, options
        self.system = system
        self.messages: list[Message] = []
        self.last: _measure.Generation | None = None
        """The last answer, with its speed."""
        self.tokens = 0
        """Length of the conversation so far, as the model sees it."""
        self.templated = prompts.has_template(tokenizer)
        self._cache: Any = None
        # The tokens whose keys and values the cache has.
        self._cached: list[int] = []

    def reset(self) -> None:
        """Begins anew; the system message stays."""
        self.messages, self.tokens = [], 0
        self.forget()

    def forget(self) -> None:
        """Lets go of the cache: of one that was broken off in the middle nobody knows what it has."""
        self._cache, self._cached = None, []

    def ask(self, text: str, streamer: Any, stopping: Sequence[Any], max_new_tokens: int) -> _measure.Generation:
        """The model's answer to a message, which both become part of the conversation.

        :param streamer: the receiver of each token as it comes.
        :param stopping: criteria of transformers for an earlier end.
        :raises InputError: if the conversation is longer than the model takes; the message is then left out of it.
        """
        asked: Message = {"role": "user", "content": text}
        ids = self._ids(asked)
        room = self._room(len(ids))
        options = {**self._options, "stopping_criteria": list(stopping), "streamer": streamer, **self._ends()}
        if (cache := self._reused(ids)) is not None:
            options[running.cache_name(self._model)] = cache
        # Until it is complete, what the cache has is not known.
        self._cached = []
        new = max_new_tokens if room is None else min(max_new_tokens, room)
        generation = _measure.generate(self._model, ids, self._tokenizer, max_new_tokens=new, **options)
        self._cache = cache
        if cache is not None:
            self._cached = [*ids, *generation.tokens][: int(cache.get_seq_length())]
        self.last, self.tokens = generation, len(ids) + len(generation.tokens)
        self.keep(text, generation.text or "")
        return generation

    def keep(self, text: str, answer: str) -> None:
        """Adds a message and its answer to the conversation."""
        if self.templated:
            self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def all_messages(self) -> list[Message]:
        """The system message, if there is one, and all others."""
        first: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.messages]

    def _ids(self, asked: Message) -> list[int]:
        if self.templated:
            return prompts.ids_of(self._tokenizer, [*self.all_messages(), asked], self._name)
        ids = [int(token) for token in self._tokenizer(asked["content"])["input_ids"]]
        if not ids:
            raise InputError("the text has no tokens (write something)", code="I606")
        return ids

    def _room(self, used: int) -> int | None:
        """Tokens that the model still takes; nothing where it says no limit."""
        config: Any = getattr(self._model, "config", None)
        text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        limit = getattr(text, "max_position_embeddings", None)
        if not isinstance(limit, int):
            return None
        if used >= limit:
            raise InputError(
                f"the conversation has {used:,} tokens with this message, and the model takes {limit:,} "
                "(/reset begins a new one)",
                code="I324",
            )
        return limit - used

    def _ends(self) -> dict[str, Any]:
        """Tokens that end an answer: the tokenizer's own among them, which some models' settings leave out."""
        end_of_text = getattr(self._tokenizer, "eos_token_id", None)
        known = getattr(getattr(self._model, "generation_config", None), "eos_token_id", None)
        ends = list(known) if isinstance(known, list | tuple) else [] if known is None else [known]
        return {} if end_of_text is None or end_of_text in ends else {"eos_token_id": [*ends, end_of_text]}

    def _reused(self, ids: list[int]) -> Any:
        """A cache with what it has of these tokens, all but the last at most; nothing for models whose cache cannot be
        cut."""
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        if self._cache is None or not self._cached:
            supported = getattr(self._model, "_supports_default_dynamic_cache", None)
            if supported is None or not supported():
                return None
            cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
            # Sliding windows and states forget what came before.
            return cache if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers) else None
        common = 0
        for cached_id, new_id in zip(self._cached, ids[:-1], strict=False):
            if cached_id != new_id:
                break
            common += 1
        if common < len(self._cached):
            # Both older and newer versions of transformers take a negative number for how many go.
            self._cache.crop(common - len(self._cached))
        return self._cache
