"""Classes of transformers' own loading, at the path by which pickles of models find them."""

from typing import Any


def __getattr__(name: str) -> Any:
    from ._integrations import transformers

    return getattr(transformers, name)
