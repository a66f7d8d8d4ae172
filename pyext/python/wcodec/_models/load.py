"""Loading models so that their compressed weights never exist uncompressed, all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .._core.keywords import given
from .._file.container import Container
from .._file.encode import compress_in_memory
from .checkpoint import Stored
from .choose import of_checkpoint, of_container
from .finish import finish
from .names import matched
from .plain import set_parameters
from .request import Request
from .skeleton import as_ever, skeleton
from .source import opened
from .wrap import wrap

Calibrated = Callable[[dict[str, Any], Path, torch.device, bool, bool], dict[str, Any]]
"""Called with options of an encoding, the folder of a model or its GGUF file, a device, whether its code is trusted,
and whether progress is shown: returns options in which ``calibrate`` is statistics that are there."""


def load(
    request: Request, calibrated: Calibrated | None = None, encode: Callable[..., Container] = compress_in_memory
) -> Any:
    """Does the work of :func:`wcodec.load_model`, in stages of which each has what the one before has made: a model is
    found, built without weights, matched with its tensors, and its layers are chosen, wrapped and filled.

    :param calibrated: collects the statistics that the encoding asks for.
    :param encode: encodes weights in memory.
    """
    source = opened(request)
    with as_ever():
        model = skeleton(source.config, source.dtype, source.place, request.trust_remote_code, source.count)
        tensors = source.tensors(model)
        if isinstance(tensors, Stored):
            matching = matched(model, tensors)
            container = tensors.container
            selection = of_container(model, matching, container)
        else:
            choice = request.choice()
            encoding = dict(request.encoding)
            if calibrated is not None:
                # While the model that is made here has no weights yet.
                options = source.device, request.trust_remote_code, request.progress is True
                encoding = calibrated(encoding, tensors.path, *options)
            encoding = {**given(encoding), "progress": request.progress}
            matching = matched(model, tensors)
            selection = of_checkpoint(model, matching, tensors, choice)
            container = selection.encoded(encoding, encode)
        store, _ = wrap(model, selection, container, source.settings, request.fused, device=source.device)
        set_parameters(model, matching, tensors.__getitem__, source.device)
        store.prepare()
        finish(model, source.place, source.folder, source.device, request.fused)
    return model
