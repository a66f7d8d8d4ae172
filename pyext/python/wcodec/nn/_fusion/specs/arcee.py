"""Arcee, Nemotron, and others whose MLPs have no gates."""

from __future__ import annotations

from ..spec import MlpSpec

MLPS = (MlpSpec("return self.down_proj(self.act_fn(self.up_proj(x)))", ("up_proj",)),)
