"""The command ``wcodec explain``."""

from __future__ import annotations

import functools
import json

import pytest
import wcodec
from command import Cli, call, document
from wcodec._core.codes import catalogue


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Cli:
    return functools.partial(call, capsys)


def test_a_code_is_explained(run: Cli) -> None:
    status, out, err = run("explain", "f102")
    code = wcodec.explain("F102")
    assert (status, err) == (0, "")
    assert " ".join(out.split()) == " ".join(str(code).split())
    _, out, _ = run("explain", "[F102]", "--json")
    assert document(out, "explain")["codes"] == [code.to_dict()]


def test_all_codes_are_listed_by_section(run: Cli) -> None:
    status, out, _ = run("explain")
    lines = out.splitlines()
    assert status == 0 and [line[:4] for line in lines if line[1:4].isdigit()] == list(catalogue())
    assert all(code.section in lines for code in catalogue().values())
    assert len(document(run("explain", "--json")[1], "explain")["codes"]) == len(catalogue())


def test_an_unknown_code_gets_the_nearest_ones(run: Cli) -> None:
    status, out, err = run("explain", "F1O2")
    assert status == 2 and out == "" and "no error code 'F1O2'" in err and "F102" in err


def test_errors_end_with_their_code(run: Cli) -> None:
    status, _, err = run("inspect", "no/such/file.wcodec")
    assert status == 2 and err.endswith(" [O101]\n")
    _, out, err = run("inspect", "no/such/file.wcodec", "--json")
    error = document(out, "inspect")["error"]
    assert err.endswith(" [O101]\n") and error["code"] == "O101" and "[O101]" not in json.dumps(error)
