#!/usr/bin/env python3
"""Compiles the GPU kernels with NVRTC: cuda/ -> images/ and images.txt, by the list in modules.txt.

  --install  puts the compilers that modules.txt names into the folder --nvrtc: wheels of PyPI, nothing else of CUDA
  --write    compiles everything; writes images/*.zst and images.txt, which has the hashes of sources and images. With
             --module it compiles only these modules and takes the images of the others for unchanged, as after a change
             of a header that only these include: --check, of everything, must follow
  --check    compiles everything, and compares sources, images and images.txt with what is in the tree
  --selftest DIR  writes the PTX of test-only modules to DIR, for tests on a GPU
  --report   prints registers, stack and spills of every kernel (--module, --cc choose)

--nvrtc defaults to the environment variable WCODEC_NVRTC, or else to target/nvrtc of the repository. --write and
--check need Python's package zstandard (not from Python 3.14 on).
"""

import argparse
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "modules.txt"
CUDA = HERE / "cuda"
IMAGES = HERE / "images"
RECORD = HERE / "images.txt"
HEADING = """\
# Made by compile.py --write (`make kernels`); not to be edited. SHA-256 of what the compilers were given, and of what
# they made of it: module, image, compiler, bytes. images/ has the images, compressed by zstd.
"""


class Failure(Exception):
    """An error that is shown to the user without a traceback."""


@dataclass(frozen=True)
class Module:
    """A row `module` or `test` of modules.txt."""

    name: str
    source: str
    define: str
    shipped: bool
    since: str = "0.0"  # from a row `from`: it has images of this compute capability and later ones only
    alone: str = ""  # from a row `only`: its machine code for this one is for no other

    def has(self, image):
        return float(image.capability) >= float(self.since)

    def target(self, image):
        """The architecture that the compiler is given for an image."""
        if image.kind == "ptx":
            return image.target.replace("sm_", "compute_")
        return image.target + "a" * (image.capability == self.alone)

    @property
    def options(self):
        return [] if self.define == "-" else [f"-D{self.define}"]


@dataclass(frozen=True)
class Image:
    """A row `image` of modules.txt."""

    kind: str
    capability: str
    compiler: str

    @property
    def target(self):
        return f"sm_{self.capability.replace('.', '')}"

    def name(self, module):
        return f"{module.name}.{self.target}.{self.kind}"


class List:
    """The content of modules.txt."""

    def __init__(self):
        self.modules, self.compilers, self.images = [], {}, []
        for number, line in enumerate(LIST.read_text().splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] in ("module", "test") and len(words) > 4:
                self.modules.append(Module(*words[1:4], words[0] == "module"))
            elif words[0] in ("from", "only") and len(words) == 3 and words[1] in self.names:
                field = {"from": "since", "only": "alone"}[words[0]]
                self.modules = [replace(m, **{field: words[2]}) if m.name == words[1] else m for m in self.modules]
            elif words[0] == "compiler" and len(words) == 3:
                self.compilers[words[1]] = words[2]
            elif words[0] == "image" and len(words) == 4 and words[1] in ("cubin", "ptx"):
                self.images.append(Image(*words[1:]))
            else:
                raise Failure(f"{LIST.name}, line {number}: {line}")
        if unknown := {image.compiler for image in self.images} - set(self.compilers):
            raise Failure(f"{LIST.name}: no compiler {', '.join(sorted(unknown))}")

    @property
    def names(self):
        return [module.name for module in self.modules]

    def shipped(self):
        """(module, image) of all shipped images, in order."""
        return [(m, image) for m in self.modules if m.shipped for image in self.images if m.has(image)]


def zstd():
    """Functions that compress and decompress."""
    try:
        from compression import zstd
    except ImportError:
        pass
    else:
        return (lambda data: zstd.compress(data, level=22)), zstd.decompress
    try:
        import zstandard
    except ImportError:
        raise Failure("Python's package zstandard is missing: pip install zstandard") from None
    # The decompressor would trust the content size in a frame.
    return zstandard.ZstdCompressor(level=22).compress, zstandard.ZstdDecompressor().decompress


def headers():
    """The headers passed to the compilers. Those named simt_*.h are the emulator's: only C++ includes them."""
    return sorted(path for path in CUDA.glob("*.h") if not path.name.startswith("simt_"))


def sources(modules):
    """All sources of the images, in order."""
    units = {CUDA / module.source for module in modules if module.shipped}
    return [*sorted([*headers(), *units]), LIST]


class Nvrtc:
    """One version of the library."""

    def __init__(self, version, directory):
        self.lib = ctypes.CDLL(str(self.find(version, directory)))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        numbers = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", *map(ctypes.byref, numbers))
        found = ".".join(str(n.value) for n in numbers)
        # Images are compared byte for byte, so the compiler version is fixed.
        if found != version:
            raise Failure(f"NVRTC {found} in {directory / version}, whose images differ from those of {version}")

    @staticmethod
    def find(version, directory):
        name = f"libnvrtc.so.{version.partition('.')[0]}"
        for path in sorted((directory / version).rglob(name)):
            return path
        raise Failure(f"no {name} below {directory / version}: python kernels/compile.py --install")

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise Failure(f"{name}: {self.lib.nvrtcGetErrorString(status).decode()}")

    def text(self, name, program):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value or 1)
        self.call(f"nvrtcGet{name}", program, buffer)
        return buffer.raw[: size.value]

    def compile(self, module, image, *options):
        """An image, and the log. NVRTC gets headers by name, so nothing depends on their paths."""
        text = (CUDA / module.source).read_bytes()
        paths = headers()
        texts = (ctypes.c_char_p * len(paths))(*(path.read_bytes() for path in paths))
        names = (ctypes.c_char_p * len(paths))(*(path.name.encode() for path in paths))
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, module.source.encode(), len(paths), texts, names)
        try:
            # 186: a loop that is empty for some template arguments.
            flags = [
                "-std=c++17",
                "--diag-suppress=186",
                f"--gpu-architecture={module.target(image)}",
                *module.options,
                *options,
            ]
            array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            status = self.lib.nvrtcCompileProgram(program, len(flags), array)
            log = self.text("ProgramLog", program).rstrip(b"\0").decode().strip()
            if status != 0:
                raise Failure(f"{module.source} {' '.join(flags)}:\n{log}")
            # PTX includes its final zero, which the driver requires.
            data = self.text("CUBIN" if image.kind == "cubin" else "PTX", program)
            if image.kind == "ptx":
                # The driver ignores comments, which are an eighth of the text. Some contain a counter over everything
                # that the process has compiled.
                data = re.sub(rb"\n\s*\n", b"\n", re.sub(rb"[ \t]*//[^\n]*", b"", data)).lstrip()
        finally:
            self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        good = data.startswith(b"\x7fELF") if image.kind == "cubin" else data.endswith(b"\0")
        if not good:
            raise Failure(f"{image.name(module)}: NVRTC {image.compiler} made no {image.kind}")
        for path in (str(HERE), str(Path.home())):
            if len(path) > 3 and path.encode() in data:
                raise Failure(f"{image.name(module)} contains a path of this machine: {path}")
        return data, log


@cache
def load(version, directory):
    return Nvrtc(version, directory)


def job(directory, module, image, options):
    """One compilation, in a process of its own: NVRTC compiles one program at a time."""
    return load(image.compiler, directory).compile(module, image, *options)


def in_parallel(pool, directory, modules, images, *options):
    """(module, image, data, log) of all, in order."""
    pairs = [(module, image) for module in modules for image in images if module.has(image)]
    results = [pool.submit(job, directory, *pair, options) for pair in pairs]
    try:
        return [(*pair, *result.result()) for pair, result in zip(pairs, results, strict=True)]
    except Failure:
        pool.shutdown(cancel_futures=True)
        raise


def source_rows(modules):
    return [f"source  {path.name:12} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sources(modules)]


def image_row(module, image, data):
    name = image.name(module).removeprefix(f"{module.name}.")
    digest = hashlib.sha256(data).hexdigest()
    return f"image   {module.name:12} {name:12} {image.compiler:6} {len(data):8} {digest}"


def stored(name, decompress):
    """A decompressed image of the tree, or None if it is missing."""
    try:
        return decompress((IMAGES / f"{name}.zst").read_bytes())
    except FileNotFoundError:
        return None
    except Exception as error:
        print(f"images/{name}.zst: {error}", file=sys.stderr)
        return None


def record_key(row):
    """The part of a row of images.txt that says which source or image it is of."""
    words = row.split()
    return tuple(words[: 3 if words[0] == "image" else 2])


def write(results, there):
    """Writes what was compiled, and leaves the images of modules that were not as they are."""
    compress, decompress = zstd()
    before = RECORD.read_text().splitlines() if RECORD.is_file() else []
    rows = {record_key(row): row for row in before if row.startswith("image ")}
    rows |= {record_key(row): row for row in (image_row(*result[:3]) for result in results)}
    names = {image.name(module): record_key(image_row(module, image, b"")) for module, image in there.shipped()}
    made = {image.name(module) for module, image, _, _ in results}
    if lacking := [
        n for n, k in names.items() if n not in made and not (k in rows and (IMAGES / f"{n}.zst").is_file())
    ]:
        raise Failure(f"not compiled, and not there: {', '.join(lacking)}; --write without --module makes everything")
    IMAGES.mkdir(exist_ok=True)
    for path in IMAGES.iterdir():
        if path.name.removesuffix(".zst") not in names:
            path.unlink()
    for module, image, data, _ in results:
        name = image.name(module)
        # Other versions of zstd compress differently, which is not a change.
        if stored(name, decompress) != data:
            (IMAGES / f"{name}.zst").write_bytes(compress(data))
            print(f"images/{name}.zst: {(IMAGES / f'{name}.zst').stat().st_size:,} of {len(data):,} bytes")
    RECORD.write_text(
        "\n".join([HEADING.rstrip(), *source_rows(there.modules), *(rows[key] for key in names.values()), ""])
    )
    total = sum(path.stat().st_size for path in IMAGES.iterdir())
    print(f"images/ has {len(names)} images of {total:,} bytes, {len(made)} of them compiled now")


def check(results, modules, everything):
    _, decompress = zstd()
    there = RECORD.read_text().splitlines() if RECORD.is_file() else []
    stale = [row.split()[1] for row in source_rows(modules) if row not in there]
    for module, image, data, _ in results:
        if image_row(module, image, data) not in there or stored(image.name(module), decompress) != data:
            stale.append(image.name(module))
    if everything:
        rows = [*source_rows(modules), *(image_row(*result[:3]) for result in results)]
        names = {f"{image.name(module)}.zst" for module, image, _, _ in results}
        stale += [path.name for path in sorted(IMAGES.glob("*")) if path.name not in names]
        if not stale and there != [*HEADING.splitlines(), *rows]:
            stale.append(RECORD.name)
    if stale:
        raise Failure(f"not what the source gives now: {', '.join(stale)}; run make kernels")
    print(f"images/: {len(results)} images are what the source gives")


def ptxas_lines(log):
    """(kernel, registers, stack, stores, loads) from the assembler's output with --verbose."""
    rows, kernel, spills = [], None, (0, 0, 0)
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = tuple(map(int, found.groups()))
        elif (found := re.search(r"Used (\d+) registers", line)) and kernel:
            rows.append((kernel, int(found[1]), *spills))
            kernel, spills = None, (0, 0, 0)
    return rows


def report(results):
    print(f"{'module':10} {'device':>6}  {'kernel':36} {'registers':>9} {'stack':>6} {'stored':>7} {'loaded':>7}")
    for module, image, _, log in results:
        for kernel, registers, stack, stores, loads in ptxas_lines(log):
            row = f"{kernel:36} {registers:>9} {stack:>6} {stores:>7} {loads:>7}"
            print(f"{module.name:10} {image.target:>6}  {row}")


def install(compilers, directory):
    for version, wheel in compilers.items():
        place = directory / version
        if (place / wheel).is_file():
            continue
        shutil.rmtree(place, ignore_errors=True)
        print(f"installing {wheel} into {place}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--only-binary", ":all:", "--target", str(place), wheel], check=False)
        if done.returncode != 0:
            raise Failure(f"pip does not install {wheel}")
        (place / wheel).touch()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the compilers")
    parser.add_argument("--write", action="store_true", help="write images/ and images.txt")
    parser.add_argument("--check", action="store_true", help="compare images/ and images.txt with the source")
    parser.add_argument("--selftest", type=Path, metavar="DIR", help="write the PTX of the tests' own modules to DIR")
    parser.add_argument("--report", action="store_true", help="print registers and spills (bytes) of every kernel")
    parser.add_argument("--module", action="append", help="only this module; repeatable")
    parser.add_argument("--cc", action="append", help="only for this compute capability, as in 8.6; repeatable")
    parser.add_argument("--nvrtc", metavar="DIR", help="where the compilers are")
    options = parser.parse_args()
    jobs = options.write or options.check or options.report or options.selftest
    if not (options.install or jobs):
        parser.error("one of --install, --write, --check, --selftest, --report")
    everything = not (options.module or options.cc)
    if options.write and options.cc:
        parser.error("--write makes all images of a module, so that they are of one source: no --cc")
    there = List()
    names = there.names
    if unknown := set(options.module or []) - set(names):
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    known = sorted({image.capability for image in there.images}, key=float)
    if unknown := set(options.cc or []) - set(known):
        parser.error(f"no images for {', '.join(sorted(unknown))}; there are some for {', '.join(known)}")
    modules = [m for m in there.modules if m.name in (options.module or names)]
    images = [i for i in there.images if i.capability in (options.cc or known)]
    directory = Path(options.nvrtc or os.environ.get("WCODEC_NVRTC") or HERE.parent / "target/nvrtc").resolve()
    if options.install:
        install(there.compilers, directory)
    if not jobs:
        return
    for image in images:
        load(image.compiler, directory)
    with ProcessPoolExecutor() as pool:
        if options.write or options.check:
            results = in_parallel(pool, directory, modules, images)
            for module, image, _, log in results:
                if log:
                    print(f"{image.name(module)}: {log}", file=sys.stderr)
            shipped = [result for result in results if result[0].shipped]
            if options.write:
                write(shipped, there)
            if options.check:
                check(shipped, there.modules, everything)
        if options.selftest:
            options.selftest.mkdir(parents=True, exist_ok=True)
            tests = [module for module in modules if not module.shipped]
            texts = [image for image in images if image.kind == "ptx"]
            for module, image, data, _ in in_parallel(pool, directory, tests, texts):
                (options.selftest / image.name(module)).write_bytes(data.rstrip(b"\0"))
        if options.report:
            cubins = [image for image in images if image.kind == "cubin"]
            report(in_parallel(pool, directory, modules, cubins, "--ptxas-options=--verbose"))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"compile.py: {failure}")
