"""Fetches wheels for another machine: its Python, its system, and the versions that vLLM's wheel asks for."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = (
    "compressed-tensors", "openai", "fastapi", "starlette", "pydantic", "pydantic-core", "annotated-types",
    "typing-extensions", "typing-inspection", "httpx2", "sniffio", "oss-harmony", "xgrammar", "apache-tvm-ffi",
    "llguidance", "loguru", "msgspec", "pyzmq", "cbor2", "blake3", "cachetools", "pybase64", "partial-json-parser",
)  # fmt: skip
"""Packages that importing vLLM and running a model take, beside torch, transformers and what these bring. A package
comes after those that say which version of it they need."""
SYSTEMS = ("manylinux_2_35", "manylinux_2_31", "manylinux_2_28", "manylinux2014", "manylinux_2_17")


class CannotFetch(RuntimeError):
    """Why a wheel could not be had."""


def fetch(requirement: str, folder: Path, python: str, machine: str = "x86_64") -> Path:
    """A wheel for that Python."""
    before = set(folder.glob("*.whl"))
    version = "cp" + python.replace(".", "")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary", ":all:", "--python-version", python, "--implementation", "cp", "--dest", str(folder),
    ]  # fmt: skip
    for abi in (version, "abi3", "none"):
        command += ["--abi", abi]
    for platform in (*(f"{system}_{machine}" for system in SYSTEMS), "any"):
        command += ["--platform", platform]
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    new = set(folder.glob("*.whl")) - before
    if done.returncode or len(new) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotFetch(f"{requirement}: {lines[-1] if lines else 'pip fetched nothing new'}")
    return new.pop()


def wanted(wheel: Path, python: str) -> dict[str, str]:
    """The versions of packages that a wheel asks for on that Python, without those of its extras."""
    with zipfile.ZipFile(wheel) as file:
        name = next(n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        lines = email.message_from_string(file.read(name).decode("utf-8")).get_all("Requires-Dist") or []
    return versions_in(lines, python)


def versions_in(lines: list[str], python: str) -> dict[str, str]:
    """The versions that lines of a wheel's metadata ask for.

    >>> versions_in(["a==1.0", "B_c>=2,<3; python_version >= '3.12'", "d; extra == 'x'", "e; os_name == 'nt'"], "3.12")
    {'a': '==1.0', 'b-c': '<3,>=2'}
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {
        "python_version": python, "python_full_version": f"{python}.0", "platform_system": "Linux", "os_name": "posix",
        "sys_platform": "linux", "platform_machine": "x86_64", "extra": "",
    }  # fmt: skip
    out = {}
    for line in lines:
        found = Requirement(line)
        if found.marker is None or found.marker.evaluate(there):
            out[canonicalize_name(found.name)] = str(found.specifier)
    return out


def all_of(vllm: Path, folder: Path, python: str, also: tuple[str, ...] = ()) -> list[Path]:
    """The wheels of :data:`PACKAGES` and of others, in the versions that vLLM's wheel and each other ask for."""
    asked = dict.fromkeys((*PACKAGES, *also), "")
    out = []
    _ask(asked, wanted(vllm, python))
    for name in list(asked):
        wheel = fetch(f"{name}{asked[name]}", folder, python)
        _ask(asked, wanted(wheel, python))
        out.append(wheel)
    return out


def _ask(asked: dict[str, str], versions: dict[str, str]) -> None:
    for name, version in versions.items():
        if name in asked and version:
            asked[name] = f"{asked[name]},{version}" if asked[name] else version
