"""Arguments of those functions that give a model compressed layers, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .._core.errors import FormatError, InputError
from .._core.options import patterns
from .._core.progress import ProgressCallback
from ..nn._weights.placement import Settings, checked_settings
from .folder import quantization_of
from .hub import Options


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The layers that are to be compressed, and the place of their weights: as for :func:`wcodec.compress_`."""

    include: str | Iterable[str] = ()
    exclude: str | Iterable[str] = ()
    embeddings: bool = True
    residency: str | None = None
    vram_budget: int | str | None = None
    ram_budget: int | str | None = None
    cache: int | str | None = None
    fused: bool = True

    @classmethod
    def of(cls, config: Any) -> Wanted:
        """These arguments of a config that has them as attributes."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls)})

    def choice(self) -> tuple[list[str], list[str], bool]:
        """The patterns of layers, and whether embeddings are among them, as :func:`wcodec._models.find.find` takes it.

        :raises InputError: if a pattern is none.
        """
        return patterns("include", self.include), patterns("exclude", self.exclude), self.embeddings

    def settings(self) -> Settings:
        """The settings in bytes.

        :raises InputError: if they do not go together.
        """
        return checked_settings(self.residency, self.vram_budget, self.cache, self.ram_budget)


@dataclass(frozen=True, kw_only=True)
class Request(Wanted):
    """The arguments of :func:`wcodec.load_model`."""

    path: str | os.PathLike[str]
    device: Any = None
    dtype: Any = None
    encoding: Mapping[str, Any] = field(default_factory=dict)
    """Options for compressing an ordinary checkpoint; those that are ``None`` were not given."""
    trusted: bool = False
    trust_remote_code: bool = False
    hub: Options = field(default_factory=Options)
    progress: bool | ProgressCallback = False


def settings_of(folder: Path | None, wanted: Wanted) -> Settings:
    """The settings that were asked for; those that were left out are as the folder's config says."""
    saved = {} if folder is None else quantization_of(folder)
    if folder is not None:
        _check_saved(saved, folder / "config.json")
    vram, ram = wanted.vram_budget, wanted.ram_budget
    budgets = vram is not None or ram is not None
    residency = wanted.residency or ("auto" if budgets else saved.get("residency", "device"))
    if residency == "auto":
        vram = saved.get("vram_budget") if vram is None else vram
        ram = saved.get("ram_budget") if ram is None else ram
    return checked_settings(residency, vram, saved.get("cache") if wanted.cache is None else wanted.cache, ram)


def _check_saved(saved: dict[str, Any], path: Path) -> None:
    """Whether the settings in a config can be used, so that an error names the config."""
    residency = saved.get("residency", "device")
    vram, ram = (saved.get(name) if residency == "auto" else None for name in ("vram_budget", "ram_budget"))
    try:
        checked_settings(residency, vram, saved.get("cache"), ram)
    except InputError as error:
        raise FormatError(
            f"{path}: its quantization_config is wrong (restore the file): {error}", file=path, code="F109"
        ) from None
