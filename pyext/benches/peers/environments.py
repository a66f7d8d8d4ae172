"""An environment for each peer: what it needs, beside torch, transformers and wcodec of the interpreter that runs this.

Those are shared, for two reasons: all peers then run on the same torch, without which their speeds would not be
comparable; and a torch for each would be gigabytes. They are held where they are by constraints, so that a peer that
wants another torch fails with pip's reason, instead of being measured on it. Packages that pip installs come first on
the path.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .catalogue import Peer, package

# Seconds: some build from source.
INSTALL_LIMIT = 1800
HELD = ("torch", "transformers", "numpy", "tokenizers", "huggingface-hub", "safetensors", "accelerate", "triton")
STAMP = "installed.json"


class Unavailable(RuntimeError):
    """Why there is no environment for a peer."""


@dataclass(frozen=True)
class Options:
    """Options of how packages are installed."""

    folder: Path
    installed: bool = False
    """Take what this interpreter has, and install nothing."""
    find_links: str | None = None
    no_index: bool = False


@dataclass(frozen=True)
class Environment:
    python: str
    how: str
    """The source of its packages, for the report."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that this interpreter has."""
    out = {}
    for name in packages:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def constraints() -> list[str]:
    """Versions that are not to be changed."""
    return [f"{name}=={version}" for name, version in versions(HELD).items()]


def base_folders() -> list[str]:
    """Folders in which this interpreter finds its packages, without PYTHONPATH, which is inherited."""
    folders = [sysconfig.get_paths()[key] for key in ("purelib", "platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # An environment may itself see the packages of the interpreter that it was made from.
    folders += site.getsitepackages()
    return [f for f in dict.fromkeys(folders) if Path(f).is_dir()]


def missing(peer: Peer, cuda: str | None) -> list[str]:
    """Requirements that this interpreter has not, whatever their versions."""
    names = [package(requirement) for requirement in peer.needs(cuda)]
    there = versions(names)
    return [name for name in names if name not in there]


def prepare(peer: Peer, cuda: str | None, options: Options, limit: float = INSTALL_LIMIT) -> Environment:
    """The interpreter that a peer runs with, made in at most ``limit`` seconds if it is not there.

    :raises Unavailable: with the reason, if what it needs cannot be had.
    """
    needs = peer.needs(cuda)
    if not needs:
        return Environment(sys.executable, "this interpreter; it needs nothing else")
    if options.installed:
        if lacking := missing(peer, cuda):
            raise Unavailable(f"not installed here: {', '.join(lacking)}")
        return Environment(sys.executable, "this interpreter, as --installed asks")
    folder = options.folder / peer.name
    python = folder / "bin" / "python"
    wanted = {
        "needs": needs,
        "alone": peer.no_dependencies,
        "constraints": constraints(),
        "python": sys.version,
        "base": base_folders(),
    }
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    stamp = folder / STAMP
    how = "an environment of its own, on this interpreter's torch"
    if stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")).get("key") == key:
        return Environment(str(python), how)
    end = time.monotonic() + min(limit, INSTALL_LIMIT)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # pip runs from here: a pip of its own would be most of the environment.
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], "no environment could be made", end)
    _share(folder)
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(constraints()) + "\n", encoding="utf-8")
    command = [
        sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
        "--constraint", str(limits), *needs,
    ]  # fmt: skip
    if options.find_links is not None:
        command += ["--find-links", options.find_links]
    if options.no_index:
        command.append("--no-index")
    if peer.no_dependencies:
        command.append("--no-deps")
    if peer.no_build_isolation:
        command.append("--no-build-isolation")
    _run(command, "pip could not install it", end)
    stamp.write_text(json.dumps({"key": key, **wanted}, indent=1), encoding="utf-8")
    return Environment(str(python), how)


def _share(folder: Path) -> None:
    """Lets an environment see the packages of this interpreter, after its own."""
    own = next(folder.glob("lib/python*/site-packages"))
    lines = [f"import site; site.addsitedir({base!r})" for base in base_folders()]
    (own / "shared.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run(command: Sequence[str], what: str, end: float) -> None:
    """Until ``end`` by time.monotonic()."""
    limit = max(end - time.monotonic(), 0.0)
    try:
        done = processes.run(command, limit)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: there were only {limit:.3g} s for it") from None
    except OSError as error:
        raise Unavailable(f"{what}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{what}: {_why(done.stderr or done.stdout)}")


def _why(text: str) -> str:
    """The line of pip's output that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    # The last one is often only that there was one.
    told = [line for line in errors if "subprocess" not in line and "metadata-generation" not in line]
    return ((told or errors or lines or ["it said nothing"])[0])[:300]
