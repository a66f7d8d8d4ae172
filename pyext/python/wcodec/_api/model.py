"""A model with its compressed weights, as one object."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.keywords import keywords_of
from .._models.save import save_pretrained
from ..nn import CompressedLayer
from .models import load_model


class WCodecModel:
    """A model of transformers with compressed layers. It is called, and generates, as the model itself does::

        model = wcodec.WCodecModel.from_pretrained("model-compressed", device="cuda", residency="host")
        model.generate(**inputs, max_new_tokens=20)
        model.save_pretrained("copy")

    :param model: a model with compressed layers, from :func:`wcodec.compress_` or :func:`wcodec.load_model`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        if not self._layers():
            raise InputError(
                f"no layer of this {type(model).__name__} is compressed (call wcodec.compress_ first)", code="I506"
            )

    @classmethod
    @keywords_of(load_model, name="WCodecModel.from_pretrained")
    def from_pretrained(cls, path: str | os.PathLike[str], **options: Any) -> WCodecModel:
        """Loads a folder, a file or a repository: see :func:`wcodec.load_model`, which has the same options."""
        return cls(load_model(path, **options))

    def save_pretrained(
        self, folder: str | os.PathLike[str], tokenizer: Any = None, *, overwrite: bool = False
    ) -> None:
        """Writes the model to a folder: see :func:`wcodec.save_pretrained`."""
        save_pretrained(self.model, folder, tokenizer, overwrite=overwrite)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the compressed weights, tied ones once."""
        sizes = {(id(layer._store.container), layer.tensors[0]): layer for layer in self._layers()}
        unique = {(key[0], layer.entry.name): layer for key, layer in sizes.items()}
        return sum(layer.stored_bytes for layer in unique.values())

    @property
    def device_bytes(self) -> int:
        """Memory of GPUs that holds compressed weights and what decoding them needs."""
        return sum(store.device_bytes for store in {id(la._store): la._store for la in self._layers()}.values())

    @property
    def cached_bytes(self) -> int:
        """Memory in which weights stay decoded, on the devices of the layers."""
        places = {(id(la._store), la.device): la._store for la in self._layers()}
        return sum(store.cached_bytes(device) for (_, device), store in places.items())

    def _layers(self) -> list[CompressedLayer]:
        return [m for m in self.model.modules() if isinstance(m, CompressedLayer)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def __repr__(self) -> str:
        layers = self._layers()
        settings = layers[0]._store.settings
        place = f"device: {layers[0].device}, residency: {settings['residency']}"
        where = Counter(layer.residency for layer in layers)
        if "auto" not in where and len(where) > 1:
            place += f" ({', '.join(f'{where[kind]:,} {kind}' for kind in sorted(where))})"
        if settings["cache"]:
            place += f", cache: {fmt.size(self.cached_bytes)} of {fmt.size(settings['cache'])}"
        return (
            f"WCodecModel({type(self.model).__name__}, {fmt.plural(len(layers), 'compressed layer')}, "
            f"stored: {fmt.size(self.stored_bytes)}, {place})"
        )
