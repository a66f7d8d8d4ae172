#!/usr/bin/env python3
"""Runs notebooks in fresh kernels and stores what they show in the .ipynb beside their code.

    make notebooks-outputs                              # all of them
    make notebooks-outputs NOTEBOOKS="02 08"            # these
    python notebooks/outputs.py --out FOLDER            # leaves the files here as they are

What is stored names no machine: paths of the home, of temporary folders and of installed packages are made neutral, and
so are addresses in memory. Progress bars are kept as they ended, pictures with fewer colours. The notebook's metadata get
a hash of each code cell, by which tests tell whether outputs and code belong together, and what it ran on. If jupytext is
there, cells that were changed in a .py come first into its .ipynb; where it is not, the .ipynb is what counts.

Needed: ipykernel, nbclient, and what the notebooks import. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent
COMMAND = "make notebooks-outputs"
KEY = "wcodec"
"""Key of the notebook's metadata."""
# These show times: nothing else may run beside them. The quickest first, in case there is not time for all.
ALONE = ("06", "03", "04")
BESIDE = ("tests", "codec", "docs", "README.md")
"""Paths of the repository that notebooks read."""
REAL = ".demo"
"""A real model for those that show one, if `make` got it. Tests have the small one, which takes seconds."""
SECONDS_PER_CELL = 600
MOST_BYTES, MOST_BYTES_TOGETHER = 600_000, 3_000_000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
# Paths that no output may have, whatever machine it is from.
_PATHS = re.compile(
    r"(?<![\w.~…])/(?:home|root|tmp|var|opt|usr|mnt|work|private|Users|scratch|data)/\S*|\b[A-Z]:\\\S*|\bsite-packages\S*"
)
_WIDGETS = "application/vnd.jupyter.widget-view+json"
# transformers says so of a setting in the real model's own files.
_OF_A_TOKENIZER = re.compile(r"^\[transformers\] Ignoring clean_up_tokenization_spaces=.*\n?", re.M)


def names(chosen: Iterable[str] = ()) -> list[str]:
    """The notebooks whose names begin so; all of them if none are named."""
    found = sorted(path.stem for path in FOLDER.glob("[0-9]*.ipynb"))
    wanted = tuple(chosen)
    for begin in wanted:
        if not any(name.startswith(begin) for name in found):
            raise SystemExit(f"there is no notebook {begin} (there are {', '.join(found)})")
    return [name for name in found if not wanted or name.startswith(wanted)]


def hashes(notebook: dict[str, Any]) -> list[str]:
    """One of each code cell."""
    code = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in code]


def problems(notebook: dict[str, Any]) -> list[str]:
    """Why what is stored cannot stay as it is: each a sentence."""
    found = []
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    recorded = notebook["metadata"].get(KEY, {}).get("code")
    if recorded is None:
        return [f"it has no outputs: run {COMMAND}"]
    now = hashes(notebook)
    changed = [f"{i}" for i, (a, b) in enumerate(zip(now, recorded, strict=False), 1) if a != b]
    if now != recorded:
        what = f"code cell {', '.join(changed)} was" if changed else "code cells were"
        found.append(f"{what} changed after its outputs were made: run {COMMAND}")
    counts = [cell["execution_count"] for cell in cells]
    if not found and counts != list(range(1, len(cells) + 1)):
        found.append(
            f"cells did not run in their order in a fresh kernel ({counts}): run {COMMAND}"
        )
    for place, cell in enumerate(cells, 1):
        for output in cell["outputs"]:
            where = f"code cell {place}"
            if output["output_type"] == "error":
                found.append(f"{where} ended with {output['ename']}: {output['evalue']}")
            if output.get("name") == "stderr":
                found.append(f"{where} warns: {_text(output['text']).strip()[:300]}")
            if _WIDGETS in output.get("data", {}):
                found.append(f"{where} has a widget, which shows nothing without its kernel")
            for text in _texts(output):
                found += [
                    f"{where} names a path of a machine: {path[:80]}"
                    for path in _PATHS.findall(text)
                ]
                if _COLOURS.search(text) or "\r" in text:
                    found.append(f"{where} has codes of a terminal")
    size = len(json.dumps(notebook))
    if size > MOST_BYTES:
        found.append(f"it has {size:,} bytes, more than {MOST_BYTES:,}: let cells show less")
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def _texts(output: dict[str, Any]) -> list[str]:
    """All that can be read in an output."""
    data = {
        kind: value
        for kind, value in output.get("data", {}).items()
        if not kind.startswith("image/")
    }
    parts = [
        output.get("text", ""),
        output.get("evalue", ""),
        "\n".join(output.get("traceback", [])),
    ]
    return [_text(part) for part in (*parts, *data.values()) if isinstance(part, (str, list))]


# --- what is stored


class Neutral:
    """Takes out of texts what they say of the machine."""

    def __init__(self, folder: Path) -> None:
        """:param folder: the temporary one that a notebook runs in."""
        self._replaced = [
            (re.compile(re.escape(f"{folder}/tmp/") + r"[^\s/'\"<]+"), "…"),
            *((re.compile(re.escape(str(path))), text) for path, text in self._places(folder)),
        ]
        host = socket.gethostname()
        # A name such as "1" would be found everywhere.
        self._host = (
            re.compile(rf"\b{re.escape(host)}\b") if len(host) > 3 and host != "localhost" else None
        )

    @staticmethod
    def _places(folder: Path) -> list[tuple[str, str]]:
        packages = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")} | {
            p for p in sys.path if len(p) > 4
        }
        found = [
            (f"{folder / 'repository'}", "wcodec"),
            (str(folder), "…"),
            (str(REPOSITORY), "wcodec"),
            (sys.prefix, "python"),
            (sys.base_prefix, "python"),
            (tempfile.gettempdir(), "…"),
        ]
        # Scripts begin with their own folder there, and some add one of the repository.
        others = {str(FOLDER), str(Path(sys.executable).parent)}
        others |= {
            p
            for p in packages
            if Path(p).is_relative_to(REPOSITORY) and not Path(p).is_relative_to(sys.prefix)
        }
        found += [(path, "packages") for path in packages - others]
        home = str(Path.home())
        if len(home) > 1:
            found.append((home, "~"))
        # One may be in another, such as the environment in the repository.
        return sorted(found, key=lambda place: len(place[0]), reverse=True)

    def __call__(self, text: str) -> str:
        for pattern, instead in self._replaced:
            text = pattern.sub(instead, text)
        text = _ADDRESS.sub("0x…", _COLOURS.sub("", text))
        return self._host.sub("machine", text) if self._host else text


def as_it_ended(text: str) -> str:
    """The text that a terminal shows at the end, where lines are rewritten as progress bars do.

    >>> as_it_ended("0 %\\r50 %\\rdone\\nnext")
    'done\\nnext'
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def smaller(png: str) -> str:
    """A picture in base64 whose colours are a little coarser, which nobody sees; as it was if that is not smaller."""
    from PIL import Image

    data = base64.b64decode(png)
    with Image.open(io.BytesIO(data)) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
    # Each channel by itself: choosing the best few colours would lose that of a thin line.
    flat = flat.point([round(round(value * 31 / 255) * 255 / 31) for value in range(256)] * 3)
    if flat.getcolors(256):
        flat = flat.quantize(256)
    written = io.BytesIO()
    flat.save(written, "png", optimize=True)
    return base64.b64encode(min(written.getvalue(), data, key=len)).decode()


def tidy(notebook: Any, neutral: Neutral) -> None:
    """Makes of the outputs of a run those that are stored."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        kept: list[Any] = []
        for output in cell.outputs:
            before = kept[-1] if kept else None
            if (
                output.output_type == "stream"
                and before is not None
                and before.get("name") == output.name
            ):
                before.text += output.text
            elif _WIDGETS not in output.get("data", {}):
                kept.append(output)
        for output in kept:
            if output.output_type == "stream":
                output.text = neutral(as_it_ended(_OF_A_TOKENIZER.sub("", output.text)))
                continue
            if "metadata" in output:
                output.metadata = {}
            for kind, value in list(output.get("data", {}).items()):
                if kind == "image/png":
                    output.data[kind] = smaller(value)
                elif isinstance(value, str):
                    output.data[kind] = neutral(value)
        cell.outputs = [one for one in kept if one.output_type != "stream" or one.text]
    for gone in set(notebook.metadata) - {"jupytext", "kernelspec"}:
        del notebook.metadata[gone]
    # Not what Jupyter calls the kernel of the machine.
    notebook.metadata.kernelspec = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }


def place() -> dict[str, Any]:
    """Hardware and versions that notebooks run on, without the machine's name."""
    found: dict[str, Any] = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d")}
    # In a process of its own: this one would hold memory of the GPU otherwise.
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    gpu = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=False
    ).stdout.strip()
    found |= {
        "gpu": gpu or None,
        "cores": os.cpu_count(),
        "python": ".".join(map(str, sys.version_info[:2])),
    }
    for package in ("wcodec", "torch", "transformers"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


# --- a run


def environment(folder: Path, home: Path) -> dict[str, str]:
    """That of a kernel which has no settings of the user, downloads nothing, and leaves no file outside the folders."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER_", "IPYTHON", "MPL"))}
    kept = {k: v for k, v in kept.items() if not k.startswith("WCODEC_") or k == "WCODEC_NVCOMP"}
    (folder / "tmp").mkdir(exist_ok=True)
    # torch makes its own folder in this one, but not this one.
    (home / "cache").mkdir(exist_ok=True)
    places = {
        "HOME": home,
        "XDG_CACHE_HOME": home / "cache",
        "XDG_CONFIG_HOME": home / "config",
        "IPYTHONDIR": home / "ipython",
        "JUPYTER_CONFIG_DIR": home / "jupyter",
        "JUPYTER_DATA_DIR": home / "jupyter-data",
        "JUPYTER_RUNTIME_DIR": home / "jupyter-runtime",
        "MPLCONFIGDIR": home / "matplotlib",
        "TMPDIR": folder / "tmp",
    }
    # Without the last two the kernel warns that a debugger would miss breakpoints, and tqdm that widgets are missing, which
    # readers have.
    told = {
        "HF_HUB_OFFLINE": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",
    }
    return kept | {name: str(path) for name, path in places.items()} | told


def kernel(folder: Path, sockets: str) -> Any:
    """A kernel of this very interpreter, whatever kernels are installed.

    :param sockets: a folder whose path is short, as those of sockets have to be. Ports would be taken by others at times.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    specification = folder / "kernels" / "python3" / "kernel.json"
    specification.parent.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
        "--log-level=ERROR",
    ]
    specification.write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
    )
    known = KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False)
    connection = str(folder / "kernels" / "connection.json")
    through = {} if os.name == "nt" else {"transport": "ipc", "ip": f"{sockets}/k"}
    return AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=known, connection_file=connection, **through
    )


def copied(folder: Path, beside: Iterable[str]) -> Path:
    """A copy of this folder, with what notebooks read beside it."""
    target = folder / "repository" / "notebooks"
    target.mkdir(parents=True)
    for path in FOLDER.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (target / path.name).write_bytes(path.read_bytes())
    for path in map(REPOSITORY.joinpath, beside):
        if path.exists():
            (target.parent / path.name).symlink_to(path)
    return target


def executed(notebook: Any, folder: Path, home: Path, beside: Iterable[str] = BESIDE) -> str | None:
    """Runs all cells in a copy of this folder; what went wrong, with the cell and its traceback, without colours.

    :param folder: an empty one, for this run only.
    :param home: one that several runs may share: what libraries leave there is made once.
    :param beside: paths of the repository that the notebook finds.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    resources = {"metadata": {"path": str(copied(folder, beside))}}
    with tempfile.TemporaryDirectory(prefix="k-") as sockets:
        client = NotebookClient(
            notebook,
            km=kernel(folder, sockets),
            timeout=SECONDS_PER_CELL,
            resources=resources,
            record_timing=False,
        )
        try:
            client.execute(env=environment(folder, home), cleanup_kc=True)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return _COLOURS.sub("", str(error))
    return None


def run(
    name: str, home: Path, where: dict[str, Any], out: Path
) -> tuple[str, float, str | None, list[str]]:
    """One notebook: its name, the seconds, what it stopped at, and what has to be mended in what it showed."""
    import nbformat

    begin = time.perf_counter()
    try:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
            problem = executed(notebook, Path(folder), home, (*BESIDE, REAL))
            neutral = Neutral(Path(folder))
        if problem is not None:
            return name, time.perf_counter() - begin, neutral(problem), []
        tidy(notebook, neutral)
        stored = json.loads(nbformat.writes(notebook))
        stored["metadata"][KEY] = {"code": hashes(stored), "run": where}
        text = json.dumps(stored, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        (out / f"{name}.ipynb").write_text(text, encoding="utf-8")
        return name, time.perf_counter() - begin, None, problems(stored)
    except Exception:
        return name, time.perf_counter() - begin, traceback.format_exc(), []


def from_text(chosen: Sequence[str]) -> None:
    """Takes changes of the .py into the .ipynb, where jupytext is installed."""
    if importlib.util.find_spec("jupytext"):
        command = [sys.executable, "-m", "jupytext", "--quiet", "--update", "--to", "ipynb"]
        subprocess.run([*command, *(f"{name}.py" for name in chosen)], cwd=FOLDER, check=True)


def main() -> int:
    about, _, rest = (__doc__ or "").partition("\n\n")
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=rest, formatter_class=how)
    parser.add_argument(
        "notebooks", nargs="*", help="first letters of names, such as 05 (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="folder for the finished files (default: this one)"
    )
    parser.add_argument(
        "--parallel",
        type=int,
        default=1,
        help="how many run at a time; those that show times run alone",
    )
    parser.add_argument(
        "--limit", type=float, help="seconds for all: what has not begun by then is left out"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="runs nothing; says whether code and outputs belong together",
    )
    options = parser.parse_args()
    chosen = names(options.notebooks)
    if options.check:
        return checked(chosen)
    from_text(chosen)
    options.out.mkdir(parents=True, exist_ok=True)
    where, begin, bad = place(), time.monotonic(), 0
    print(
        f"on {where['gpu'] or 'a CPU'}, {where['cores']} cores, torch {where['torch']}", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="notebooks-home-") as home:
        # One kind after the other. Those that run alone come last, so that the others are there if time runs out.
        for alone in (False, True):
            mine = [name for name in chosen if name.startswith(ALONE) == alone]
            mine.sort(key=lambda name: ALONE.index(name[:2]) if name[:2] in ALONE else 0)
            # Processes of their own, since each waits for its kernel in an event loop.
            with concurrent.futures.ProcessPoolExecutor(
                1 if alone else max(1, options.parallel), multiprocessing.get_context("spawn")
            ) as pool:
                waiting = {
                    pool.submit(run, name, Path(home), where, options.out): name for name in mine
                }
                for done in concurrent.futures.as_completed(waiting):
                    if done.cancelled():
                        continue
                    name, seconds, problem, mend = done.result()
                    print(
                        f"{seconds:6.1f} s  {name}: {'failed' if problem else 'done'}", flush=True
                    )
                    for line in [problem] if problem else mend:
                        print(f"          {line}".rstrip(), flush=True)
                    bad += bool(problem or mend)
                    if options.limit is not None and time.monotonic() - begin > options.limit:
                        for other, left in waiting.items():
                            if other.cancel():
                                print(
                                    f"          {left}: not run, since {options.limit:.0f} s are over",
                                    flush=True,
                                )
                                bad += 1
    print(f"{time.monotonic() - begin:6.1f} s  together")
    return 1 if bad else 0


def checked(chosen: Sequence[str]) -> int:
    """Says of each notebook what is wrong with what is stored; the exit status."""
    found = {
        name: problems(json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")))
        for name in chosen
    }
    for name, sentences in found.items():
        for sentence in sentences:
            print(f"{name}: {sentence}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
