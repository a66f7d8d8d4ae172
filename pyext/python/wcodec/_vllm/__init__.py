"""A plug-in of vLLM: ``vllm serve FOLDER`` and ``vllm.LLM(FOLDER)`` run folders with compressed weights.

vLLM finds :func:`register` by the entry point of the group ``vllm.general_plugins``, and calls it in each of its
processes. What is made of it lies in layers: names of the folder's tensors (``_weights``), tensors without data that an
engine's loaders cut and put together (``_deferred``), what a rank keeps of that (``_rank``), layers and operators
(``_parts``, ``_experts``, ``_ops``). These know nothing of vLLM; what does is in ``_config``, ``_methods``, ``_loader``
and ``_arguments``.
"""

from __future__ import annotations

from .._errors import UnsupportedError


def register() -> None:
    """Makes the quantization method ``wcodec`` known to vLLM. Calling it again does nothing.

    :raises UnsupportedError: if vLLM is not installed. Another version than those that this is for is refused when a
        compressed model is loaded: others run as before.
    """
    try:
        import vllm
    except ImportError:
        raise UnsupportedError(
            "vLLM is not installed, which this is a plug-in of (pip install 'vllm>=0.32,<0.34')"
        ) from None
    from ._versions import refused

    version = str(getattr(vllm, "__version__", "unknown"))
    problem = refused(version)
    if problem is None:
        from . import _arguments, _config, _loader

        _config.register()
        _loader.register()
        _arguments.install()
        return
    from ._refusing import register_refusal

    register_refusal(problem)
