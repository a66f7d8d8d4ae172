"""Makes two archives that bring vLLM to a machine that has torch and a GPU, and no network.

    python pyext/benches/serving pack OUT --wheel dist/wcodec-*.whl [--vllm 0.33.0] [--arch 90] [--python 3.12]

Extensions of vLLM keep the code of one architecture only, and FlashAttention's only bf16 with heads of 64 and 128.
Both archives are unpacked into one folder, which goes on PYTHONPATH. It takes pip, strip (of binutils), and minutes.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from . import fatbin, wheels

VLLM = "0.32.0"
LEFT_OUT = (
    "*.so", "vllm/vllm-rs", "vllm/third_party/fmha_sm100/*", "vllm/third_party/deep_gemm/include/*", "*/static/*",
)  # fmt: skip
"""Files of vLLM's wheel that no engine here needs."""
EXTENSIONS = ("vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so")
ATTENTION: dict[int, tuple[str, str | None]] = {
    90: (
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        r"hdim(64|128)_bf16_(paged|paged_split|packgqa|split)_sm90|combine|prepare",
    ),
}
"""The extension of attention by architecture, and the sources of it that stay; FlashAttention 2 elsewhere."""
PTX = r"gptq_marlin_repack|_marlin\."
"""Sources that have no code for an H100: what Marlin prepares weights with, which `make peers` uses."""
FLASH_2 = ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", None)
ARCHIVES = ("packages.tar.xz", "vllm.tar.xz")
PATH = re.compile(r"(^/|(^|/)\.\.(/|$))")


class CannotPack(RuntimeError):
    """Why there are no archives."""


def stays(name: str) -> bool:
    """Whether a file of vLLM's wheel is packed as it is.

    >>> stays("vllm/config/model.py"), stays("vllm/_C.abi3.so"), stays("vllm/entrypoints/static/a.css")
    (True, False, False)
    """
    return not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


def unpack(wheel: Path, folder: Path, all_files: bool = True) -> None:
    """Unpacks a wheel; of vLLM's only what stays."""
    with zipfile.ZipFile(wheel) as file:
        names = [n for n in file.namelist() if all_files or stays(n)]
        if any(PATH.search(name) for name in names):
            raise CannotPack(f"{wheel.name} has files outside of its folder")
        file.extractall(folder, members=names)


def extension(wheel: Path, name: str, folder: Path, arch: int, pattern: str | None) -> None:
    """Unpacks one extension of vLLM's wheel, with the code of one architecture."""
    with zipfile.ZipFile(wheel) as file:
        if name not in file.namelist():
            there = ", ".join(n for n in file.namelist() if n.endswith(".so"))
            raise CannotPack(f"{wheel.name} has no {name} (there are {there})")
        data = bytearray(file.read(name))
    before, code = len(data), fatbin.slim(data, arch, pattern, PTX)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
    print(f"{name}: {before / 1e6:.0f} MB, of which {code / 1e6:.1f} MB of code for sm_{arch} stay", flush=True)


def archive(folder: Path, path: Path) -> None:
    """An archive of a folder's files, the same bytes whenever it is made."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    part = path.with_name(f"{path.name}.part")
    with tarfile.open(part, "w:xz", preset=6) as out:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            out.add(file, str(file.relative_to(folder)), filter=plain)
    part.replace(path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python pyext/benches/serving pack", description=__doc__.splitlines()[0])
    out.add_argument("out", type=Path, help="the folder of the archives")
    out.add_argument("--wheel", type=Path, required=True, help="of wcodec (make wheel)")
    out.add_argument("--vllm", default=VLLM, metavar="VERSION", help=f"default: {VLLM}")
    out.add_argument("--vllm-wheel", type=Path, metavar="FILE", help="instead of fetching it")
    out.add_argument("--also", default="", metavar="LIST", help="packages that machine lacks, such as aiohttp,yarl")
    out.add_argument("--arch", type=int, default=90, help="of the GPU, as 90 for an H100 (default)")
    out.add_argument("--python", default="3.12", metavar="VERSION", help="of that machine (default: 3.12)")
    return out


def pack(args: argparse.Namespace, work: Path) -> None:
    """Makes both archives, with ``work`` as a folder for what lies between."""
    if shutil.which("strip") is None:
        raise CannotPack("strip is missing (install binutils)")
    if not args.wheel.is_file():
        raise CannotPack(f"{args.wheel} is not there (make wheel)")
    fetched, packages, site = work / "wheels", work / "packages", work / "site"
    for folder in (fetched, packages, site, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    vllm = args.vllm_wheel or wheels.fetch(f"vllm=={args.vllm}", fetched, args.python)
    also = tuple(name for name in args.also.split(",") if name)
    for wheel in (*wheels.all_of(vllm, fetched, args.python, also), args.wheel):
        unpack(wheel, packages)
    archive(packages, args.out / ARCHIVES[0])
    unpack(vllm, site, all_files=False)
    for name in EXTENSIONS:
        extension(vllm, name, site, args.arch, None)
    name, pattern = ATTENTION.get(args.arch, FLASH_2)
    extension(vllm, name, site, args.arch, pattern)
    archive(site, args.out / ARCHIVES[1])


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="pack-", dir=args.out.parent) as work:
            pack(args, Path(work))
    except (CannotPack, wheels.CannotFetch, fatbin.NotUnderstood, OSError, subprocess.CalledProcessError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    print("Unpack both into one folder there, and put it on PYTHONPATH:")
    print(f"  for a in {' '.join(ARCHIVES)}; do tar -xf $a -C FOLDER; done; export PYTHONPATH=FOLDER")
    return 0
