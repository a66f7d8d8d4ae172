"""Results that a layer gives without computing: they were computed together with those of other layers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

_is_compiling = torch.compiler.is_compiling

Serve = Callable[[torch.Tensor], torch.Tensor]


def current_thread() -> int:
    """The thread that computes, so that threads that use one model keep their results apart; 0 in compiled code."""
    return 0 if _is_compiling() else threading.get_ident()


def serve_result(layer: Any, x: torch.Tensor, y: torch.Tensor) -> Serve:
    """``y``, where the layer is called with the very ``x`` that it was computed from."""
    version = None if _is_compiling() or x.is_inference() else x._version

    def serve(input: torch.Tensor) -> torch.Tensor:
        if input is not x or (version is not None and x._version != version):
            raise layer._refuse(
                "it was called with another tensor than the code of its module says, or with one that was changed",
                "call wcodec.nn.fuse_(model, groups=False, blocks=False)",
                code="I440",
            )
        return y

    return serve


class Serving:
    """While this lasts, layers give what is there for them in this thread, each once; what nobody asked for goes."""

    def __init__(self, layers: Sequence[Any], serve: Sequence[Serve]) -> None:
        self._layers, self._serve = layers, serve

    def __enter__(self) -> None:
        thread = current_thread()
        for layer, serve in zip(self._layers, self._serve, strict=True):
            layer._served[thread] = serve

    def __exit__(self, *_: Any) -> None:
        thread = current_thread()
        for layer in self._layers:
            layer._served.pop(thread, None)
