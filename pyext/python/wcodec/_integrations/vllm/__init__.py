"""A plug-in of vLLM: ``vllm serve FOLDER`` and ``vllm.LLM(FOLDER)`` run folders with compressed weights.

vLLM finds :func:`register` by the entry point of the group ``vllm.general_plugins``, and calls it in each of its
processes. The plug-in is made of layers: names of the folder's tensors (``weights``), tensors without data that an
engine's loaders cut and put together (``deferred``), a rank's share of them (``rank``), layers and operators
(``parts``, ``experts``, ``ops``). These know nothing of vLLM; the modules that do are ``config``, ``methods``,
``loader``, ``adapters`` and ``arguments``.
"""

from __future__ import annotations

from ..._core.errors import UnsupportedError


def register() -> None:
    """Makes the quantization method ``wcodec`` known to vLLM. Calling it again does nothing.

    :raises UnsupportedError: if vLLM is not installed. Another version than those that this is for is refused when a
        compressed model is loaded: others run as before.
    """
    try:
        import vllm
    except ImportError:
        raise UnsupportedError(
            "vLLM is not installed, which this is a plug-in of (pip install 'vllm>=0.32,<0.34')", code="U203"
        ) from None
    from .versions import refused, register_refusal

    version = str(getattr(vllm, "__version__", "unknown"))
    problem = refused(version)
    if problem is None:
        from . import arguments, config, loader

        config.register()
        loader.register()
        arguments.install()
        return
    register_refusal(problem)
