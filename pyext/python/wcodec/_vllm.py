"""The plug-in of vLLM, at the path that its entry point names."""

from ._integrations.vllm import register

__all__ = ["register"]
