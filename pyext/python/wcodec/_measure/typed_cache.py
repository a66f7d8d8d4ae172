"""A key/value cache of a chosen dtype, and attention over it.

It imports torch and transformers: import it where it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

WIDE_ATTENTION = "wcodec_wide_sdpa"
"""The name under which transformers knows :func:`wide_attention`."""


class TypedCache(DynamicCache):  # type: ignore[misc]
    """A ``DynamicCache`` that stores keys and values in ``store``, and hands them out in the dtype attention runs in.

    :param config: the model's, for layers with sliding windows.
    :param store: the dtype of what is kept.
    :param widest: whether attention runs in the wider of ``store`` and the model's dtype (which takes
        :data:`WIDE_ATTENTION`, as queries come in the model's dtype), or in the model's.
    """

    def __init__(self, config: Any, store: torch.dtype, widest: bool) -> None:
        super().__init__(config=config)
        self.store = store
        self.widest = widest

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rounds what is new to ``store``, and returns everything so far, ``[batch, heads, tokens, head size]``."""
        asked = key_states.dtype
        keys, values = super().update(
            key_states.to(self.store), value_states.to(self.store), layer_idx, *args, **kwargs
        )
        dtype = torch.promote_types(asked, self.store) if self.widest else asked
        return keys.to(dtype), values.to(dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes that the cache takes now."""
        tensors = [t for layer in self.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def wide_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``sdpa`` in the keys' dtype: queries are widened to it, and the output is rounded to the queries' dtype."""
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if query.dtype == key.dtype:
        output: tuple[torch.Tensor, torch.Tensor | None] = plain(module, query, key, value, attention_mask, **options)
        return output
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(key.dtype)
    attended, weights = plain(module, query.to(key.dtype), key, value, attention_mask, **options)
    return attended.to(query.dtype), weights


ALL_ATTENTION_FUNCTIONS.register(WIDE_ATTENTION, wide_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(WIDE_ATTENTION, sdpa_mask)
