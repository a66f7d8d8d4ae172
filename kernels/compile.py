#!/usr/bin/env python3
"""Compiles the GPU kernels with NVRTC: cuda/*.cu -> ptx/*.ptx.

  --write    writes ptx/ with NVRTC 12.4, whose PTX drivers from 550 on take
  --check    compares ptx/ with what the source gives now, byte for byte, and compiles every kernel with NVRTC 13 to
             machine code for every supported GPU
  --selftest DIR  writes the PTX of kernels that only tests use to DIR, for those on a GPU
  --report   prints registers, stack and spills of every kernel, as NVRTC 13 compiles it (--module, --cc choose)

Both versions come as Python wheels, and can be installed side by side; nothing else of CUDA is needed:

  pip install nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-nvrtc==13.5.37

They are found in this Python's site-packages, or below the directory that --nvrtc12 / --nvrtc13 or the environment
variables WCODEC_NVRTC12 / WCODEC_NVRTC13 name.
"""

import argparse
import ctypes
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
CUDA = HERE / "cuda"

# Name of a module, its source, what tells it from another with the same source.
SHIPPED = [
    ("rans", "decode.cu", ["-DWCODEC_CODER=0"]),
    ("huffman", "decode.cu", ["-DWCODEC_CODER=1"]),
    ("util", "util.cu", []),
]
# Tests the emulator, and here that the primitives compile; not shipped.
SELFTEST = ("selftest", "selftest.cu", [])

TARGETS = [75, 80, 90]
DEVICES = [75, 80, 86, 89, 90, 120]
PACKAGES = {12: "nvidia-cuda-nvrtc-cu12==12.4.127", 13: "nvidia-cuda-nvrtc==13.5.37"}
# PTX is compared byte for byte, so the one that writes it is fixed. Machine code is not kept.
WRITER = (12, 4)


class Failure(Exception):
    """Something that the user must see, without a traceback."""


class Nvrtc:
    """The library, of one major version."""

    def __init__(self, major, directory):
        path = self.find(major, directory)
        self.lib = ctypes.CDLL(str(path))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        numbers = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", *map(ctypes.byref, numbers))
        self.version = tuple(n.value for n in numbers)

    @staticmethod
    def find(major, directory):
        name = f"libnvrtc.so.{major}"
        where = directory or os.environ.get(f"WCODEC_NVRTC{major}")
        places = [where] if where else sys.path
        below = ["", "lib", "nvidia/cuda_nvrtc/lib", f"nvidia/cu{major}/lib"]
        for place in places:
            for part in below:
                path = Path(place) / part / name
                if path.is_file():
                    return path
        found = f"below {where}" if where else "in this Python's site-packages"
        raise Failure(f"no {name} {found}: pip install {PACKAGES[major]}")

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

    def compile(self, source, options, machine_code):
        """PTX or machine code, and the log. NVRTC knows headers by name alone: no text depends on where they are."""
        text = (CUDA / source).read_bytes()
        headers = sorted(CUDA.glob("*.h"))
        texts = (ctypes.c_char_p * len(headers))(*(h.read_bytes() for h in headers))
        names = (ctypes.c_char_p * len(headers))(*(h.name.encode() for h in headers))
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, source.encode(), len(headers), texts, names)
        try:
            # 186: a loop that a template's argument leaves empty.
            flags = ["-std=c++17", "--diag-suppress=186", *options]
            array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            status = self.lib.nvrtcCompileProgram(program, len(flags), array)
            log = self.text("ProgramLog", program).rstrip(b"\0").decode().strip()
            if status != 0:
                raise Failure(f"{source} {' '.join(flags)}:\n{log}")
            return self.text("CUBIN" if machine_code else "PTX", program), log
        finally:
            self.lib.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def load(major, directory):
    return Nvrtc(major, directory)


def ptx_path(name, target):
    return HERE / "ptx" / f"{name}.sm_{target}.ptx"


def make_ptx(nvrtc, module, target):
    _, source, options = module
    text, log = nvrtc.compile(source, [f"--gpu-architecture=compute_{target}", *options], False)
    if log:
        print(log, file=sys.stderr)
    text = text.rstrip(b"\0").decode()
    # The compiler's own heading says less than ours.
    text = re.sub(r"\A(?:[ \t]*//[^\n]*\n|\s*\n)*", "", text)
    if str(HERE) in text or str(Path.home()) in text:
        raise Failure(f"{source} for {target}: the PTX contains a path of this machine")
    name, version = module[0], ".".join(map(str, nvrtc.version))
    return f"// Made by compile.py with NVRTC {version} from cuda/{source} ({name}).\n{text.rstrip()}\n"


def ptxas_lines(log):
    """(kernel, registers, stack, stores, loads) from what the assembler says with --verbose."""
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


def assemble(nvrtc, module, device):
    """The log of compiling to machine code."""
    _, source, options = module
    flags = [f"--gpu-architecture=sm_{device}", "--ptxas-options=--verbose", *options]
    code, log = nvrtc.compile(source, flags, True)
    if not code.startswith(b"\x7fELF"):
        raise Failure(f"{source} for {device}: no machine code")
    return log


def job(make, major, directory, module, target):
    """One compilation, in a process of its own: NVRTC compiles one program at a time."""
    return make(load(major, directory), module, target)


def in_parallel(pool, make, major, directory, modules, targets):
    """(module, target, result) of all, in order."""
    pairs = [(module, target) for module in modules for target in targets]
    results = [pool.submit(job, make, major, directory, *pair) for pair in pairs]
    try:
        return [(*pair, result.result()) for pair, result in zip(pairs, results, strict=True)]
    except Failure:
        pool.shutdown(cancel_futures=True)
        raise


def write(pool, directory, modules):
    for module, target, text in in_parallel(pool, make_ptx, 12, directory, modules, TARGETS):
        path = ptx_path(module[0], target)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"{path.relative_to(HERE)}: {len(text):,} bytes")


def check(pool, directories, modules, devices):
    stale = []
    for module, target, text in in_parallel(pool, make_ptx, 12, directories[12], modules, TARGETS):
        path = ptx_path(module[0], target)
        if module[0] != SELFTEST[0] and (not path.is_file() or path.read_text() != text):
            stale.append(str(path.relative_to(HERE)))
    in_parallel(pool, assemble, 13, directories[13], modules, devices)
    if stale:
        raise Failure(f"not what the source gives: {', '.join(stale)}\nrun compile.py --write")
    print(f"{len(modules)} modules: PTX for {len(TARGETS)} targets, machine code for {len(devices)} devices")


def report(pool, directory, modules, devices):
    print(f"{'module':10} {'device':>6}  {'kernel':36} {'registers':>9} {'stack':>6} {'stored':>7} {'loaded':>7}")
    for module, device, log in in_parallel(pool, assemble, 13, directory, modules, devices):
        for kernel, registers, stack, stores, loads in ptxas_lines(log):
            print(f"{module[0]:10} {device:>6}  {kernel:36} {registers:>9} {stack:>6} {stores:>7} {loads:>7}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write ptx/")
    parser.add_argument("--check", action="store_true", help="compare ptx/ with the source; compile for every GPU")
    parser.add_argument("--selftest", type=Path, metavar="DIR", help="write the PTX of the tests' own kernels to DIR")
    parser.add_argument("--report", action="store_true", help="print registers and spills (bytes) of every kernel")
    parser.add_argument("--module", action="append", help="only this module; repeatable")
    parser.add_argument("--cc", action="append", type=int, help="machine code only for this GPU, as in 86; repeatable")
    parser.add_argument("--nvrtc12", metavar="DIR", help="where NVRTC 12.4 is")
    parser.add_argument("--nvrtc13", metavar="DIR", help="where NVRTC 13 is")
    options = parser.parse_args()
    if not (options.write or options.check or options.report or options.selftest):
        parser.error("one of --write, --check, --report, --selftest")
    known = [*SHIPPED, SELFTEST]
    if unknown := set(options.module or []) - {module[0] for module in known}:
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(module[0] for module in known)}")
    modules = [m for m in known if not options.module or m[0] in options.module]
    devices = options.cc or DEVICES
    directories = {12: options.nvrtc12, 13: options.nvrtc13}
    if options.write or options.check or options.selftest:
        version = load(12, options.nvrtc12).version
        if version != WRITER:
            raise Failure(f"NVRTC {version[0]}.{version[1]} writes other PTX: pip install {PACKAGES[12]}")
    if options.check or options.report:
        load(13, options.nvrtc13)
    with ProcessPoolExecutor() as pool:
        if options.write:
            write(pool, options.nvrtc12, [m for m in modules if m is not SELFTEST])
        if options.selftest:
            options.selftest.mkdir(parents=True, exist_ok=True)
            for _, target, text in in_parallel(pool, make_ptx, 12, options.nvrtc12, [SELFTEST], TARGETS):
                (options.selftest / f"selftest.sm_{target}.ptx").write_text(text)
        if options.check:
            check(pool, directories, modules, devices)
        if options.report:
            report(pool, options.nvrtc13, modules, devices)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"compile.py: {failure}")
