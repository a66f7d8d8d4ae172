"""Steps of tensors over those of others, as far as they follow from the architecture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_OF_KEYS = (".k_proj.", ".v_proj.")


def of_architecture(config: Any, names: Iterable[str]) -> dict[str, float]:
    """Finer steps for keys and values that several heads of queries share, as the encoder has them for a folder, whose
    ``config.json`` it sees.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(num_attention_heads=8, num_key_value_heads=2)
    >>> of_architecture(config, ["a.q_proj.weight", "a.k_proj.weight"])
    {'a.k_proj.weight': 0.5}
    """
    found = config.get_text_config() if hasattr(config, "get_text_config") else config
    queries, keys = (getattr(found, key, None) for key in ("num_attention_heads", "num_key_value_heads"))
    if not isinstance(queries, int) or not isinstance(keys, int) or not 0 < keys < queries:
        return {}
    return {name: math.sqrt(keys / queries) for name in names if any(role in name for role in _OF_KEYS)}
