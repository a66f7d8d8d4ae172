"""Programs that do not import wcodec: `wcodec_hook.pth` has transformers find it, and costs nothing where it is not
wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wcodec
from small_models import llama

pytest.importorskip("transformers")
PACKAGE = Path(wcodec.__file__).parents[1]
PTH = Path(__file__).parents[2] / "pyext/python/wcodec_hook.pth"

LOAD = """
import sys, warnings
import transformers
transformers.logging.disable_progress_bar()
assert "wcodec" not in sys.modules, "transformers alone has imported it"
try:
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    print(type(model.lm_head).__name__, "wcodec" in sys.modules)
except Exception as error:
    print(type(error).__name__, error)
"""


def python(code: str, *arguments: object, **environment: str) -> Any:
    """A process that runs what the .pth has, as Python does at its start."""
    lines = PTH.read_text().splitlines()
    assert all(line.startswith("import ") for line in lines)
    given = {**os.environ, "PYTHONPATH": str(PACKAGE), **environment}
    given.setdefault("WCODEC_NO_HOOK", "")
    program = "\n".join([*lines, code])
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, env=given, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hook")
    llama().save_pretrained(place / "plain")
    wcodec.compress(place / "plain", f"{place}/m/", progress=False)
    return place / "m"


def test_a_program_that_knows_nothing_of_it_loads_a_folder(folder: Path) -> None:
    assert python(LOAD, folder).stdout == "CompressedLinear True\n"
    # Other models do not import it.
    assert python(LOAD, folder.parent / "plain").stdout == "Linear False\n"


def test_programs_that_read_the_settings_themselves_find_it(folder: Path) -> None:
    """lm-eval makes an object of a config's settings before it loads anything."""
    code = """
import json, sys
from transformers.quantizers import AutoQuantizationConfig
given = json.load(open(sys.argv[1] + "/config.json"))["quantization_config"]
print(type(AutoQuantizationConfig.from_dict(given)).__name__)
"""
    assert python(code, folder).stdout == "WCodecConfig\n"


def test_it_can_be_switched_off() -> None:
    show = "print(*(type(finder).__module__ for finder in sys.meta_path))"
    assert "_wcodec_hook" in python(show).stdout and "_wcodec_hook" in python(show, WCODEC_NO_HOOK="0").stdout
    for value in ("1", "yes"):
        assert "_wcodec_hook" not in python(show, WCODEC_NO_HOOK=value).stdout


def test_nothing_is_imported_at_the_start() -> None:
    show = "print(*sorted(sys.modules))"
    with_it, without = (set(python(show, WCODEC_NO_HOOK=value).stdout.split()) for value in ("", "1"))
    assert with_it == without and "_wcodec_hook" in with_it
    assert not {"numpy", "wcodec", "importlib.util", "typing"} & (with_it - set(plain_modules()))


def plain_modules() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_package_that_is_damaged_stops_nobody(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wcodec").mkdir()
    (tmp_path / "wcodec/__init__.py").write_text("raise RuntimeError('damaged')")
    (tmp_path / "_wcodec_hook.py").write_text((PACKAGE / "_wcodec_hook.py").read_text())
    done = python(LOAD, folder, PYTHONPATH=str(tmp_path))
    assert "model.wcodec" in done.stdout and "wcodec cannot be imported" in done.stderr and "damaged" in done.stderr
    # The module itself may be gone or broken: Python starts.
    (tmp_path / "_wcodec_hook.py").write_text("raise RuntimeError('damaged')")
    assert python("print('started')", PYTHONPATH=str(tmp_path)).stdout == "started\n"


def test_importing_it_first_or_later_is_as_ever(folder: Path) -> None:
    first = "import wcodec\n" + LOAD.replace("assert", "assert True or")
    later = LOAD.replace("try:", "import wcodec\ntry:")
    assert python(first, folder).stdout == python(later, folder, WCODEC_NO_HOOK="1").stdout == "CompressedLinear True\n"
