"""``wcodec serve``: an OpenAI-compatible server, vLLM's or transformers', started with the right arguments."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .._core.errors import InputError, UnsupportedError
from .._integrations.vllm.versions import BEYOND, FIRST, refused
from .._models.folder import quantization_of
from .output import tell

# Packages that transformers' server imports, as its own check has them.
_SERVING = ("fastapi", "uvicorn", "openai", "pydantic")
_VLLM = f"pip install 'vllm>={FIRST[0]}.{FIRST[1]},<{BEYOND[0]}.{BEYOND[1]}'"
_TRANSFORMERS = "pip install 'transformers[serving]'"


def run(arguments: argparse.Namespace) -> int:
    """``wcodec serve``"""
    a = arguments
    model = _servable(a.model)
    engine, why = _engine(a.engine)
    if engine == "vllm" and a.device is not None:
        raise InputError(
            "vLLM has no --device: it runs on the GPUs that it sees (set CUDA_VISIBLE_DEVICES instead)", code="I306"
        )
    command = _vllm(a, model) if engine == "vllm" else _transformers(a, model)
    tell(f"{engine}{why}: {shlex.join(command)}")
    if Path(model).is_dir() and not quantization_of(Path(model)):
        tell(f"note: {model} is not compressed, and served as it is (wcodec encode {shlex.quote(model)} small/ first)")
    tell(f"OpenAI-compatible, at http://{a.host}:{a.port}/v1")
    return _started(command)


def _servable(model: str) -> str:
    """The folder that a server is given: of a ``.wcodec`` file in the folder of a model, that folder."""
    path = Path(model)
    if not path.is_file():
        return model
    folder = path.resolve().parent
    named = quantization_of(folder).get("file")
    if named == path.name:
        return str(folder)
    raise InputError(
        f"{model}: servers take the folder of a model (wcodec encode CHECKPOINT OUT/ writes one, with config and "
        "tokenizer)",
        file=model,
        code="I326",
    )


def _engine(asked: str | None) -> tuple[str, str]:
    """The server to start, and what to say of the choice."""
    vllm, transformers = _why_not_vllm(), _why_not_transformers()
    if asked == "vllm" and vllm is not None:
        raise UnsupportedError(f"vLLM cannot be started: {vllm} ({_VLLM}, or take --engine transformers)", code="U501")
    if asked == "transformers" and transformers is not None:
        raise UnsupportedError(f"transformers' server cannot be started: {transformers} ({_TRANSFORMERS})", code="U501")
    if asked is not None:
        return asked, ""
    if vllm is None:
        return "vllm", ""
    if transformers is None:
        return "transformers", f" ({vllm})"
    raise UnsupportedError(
        f"there is no server to start: {vllm}; {transformers} (on a GPU {_VLLM}; otherwise {_TRANSFORMERS})",
        code="U501",
    )


def _why_not_vllm() -> str | None:
    """Nothing if vLLM is here, and of a version that the plug-in is for."""
    if not _is_there("vllm"):
        return "vLLM is not installed"
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None
    return f"vLLM {version} is none that compressed models run with" if refused(version) is not None else None


def _why_not_transformers() -> str | None:
    """Nothing if transformers is here with all that its server needs."""
    missing = [name for name in ("transformers", *_SERVING) if not _is_there(name)]
    if not missing:
        return None if _is_there("transformers.cli") else "this transformers has no server"
    return f"transformers' server needs {', '.join(missing)}"


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _vllm(a: argparse.Namespace, model: str) -> list[str]:
    # Beside this Python first: one of another environment has no plug-in.
    beside = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    program = shutil.which("vllm", path=beside)
    begin = [program] if program else [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    return [*begin, "serve", model, *_common(a), *a.passed]


def _transformers(a: argparse.Namespace, model: str) -> list[str]:
    device = [] if a.device is None else ["--device", a.device]
    return [sys.executable, "-m", "wcodec._cli.transformers_cli", "serve", model, *_common(a), *device, *a.passed]


def _common(a: argparse.Namespace) -> list[str]:
    dtype = [] if a.dtype is None else ["--dtype", a.dtype]
    trust = ["--trust-remote-code"] if a.trust_remote_code else []
    return ["--host", a.host, "--port", str(a.port), *dtype, *trust]


def _started(command: Sequence[str]) -> int:
    """Becomes the server, so that its signals and its exit status are its own; where a process cannot become another
    one, waits for it."""
    sys.stdout is None or sys.stdout.flush()
    try:
        if os.name == "posix":
            os.execv(command[0], list(command))
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise UnsupportedError(f"the server does not start: {error} (install it again)", code="U501") from None
