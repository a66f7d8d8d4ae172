"""A plan as a file of JSON. The content of a file is not trusted: it may come from a stranger or a later version, or be
damaged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import paths
from .._core.errors import FormatError, InputError, UnsupportedError
from .._core.metadata import finite
from .._core.options import encode_options, path_of, shown
from .recipe import Recipe
from .records import Candidate, MeasuredQuality, PlannedTensors, StatisticsFile

if TYPE_CHECKING:
    from .._calibrate.statistics import Statistics
    from .plan_report import PlanReport

FORMAT, VERSION = "wcodec.plan", 1
# Plans of a hundred thousand tensors take a fifth of it.
_LONGEST = 1 << 28
# Options of compress that say how tensors are encoded. Whatever else a file says is refused.
_OPTIONS = frozenset({
    "scheme", "coder", "bits", "trellis", "steps", "rules", "layout", "level", "tile", "table_bits", "include",
    "exclude", "skip", "transpose", "metadata", "feedback",
})  # fmt: skip
# Errors of Python where a description has something else somewhere.
_CONTRADICTIONS = (AttributeError, KeyError, IndexError, OverflowError, RecursionError, TypeError, ValueError)
_MOST_DIMENSIONS = 16
_T = TypeVar("_T", Candidate, MeasuredQuality, PlannedTensors)


def save(report: PlanReport, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Writes the file, and beside it the statistics that the plan goes by, if no file has them yet."""
    place = Path(path_of(path))
    if place.suffix != ".json":
        raise InputError(f"{place}: a plan is a file of JSON (end its name in .json)", file=place, code="I635")
    paths.refuse_existing(place, overwrite)
    options = {k: v for k, v in report._options.items() if k in _OPTIONS and v is not None}
    record = report.to_dict()
    for key in ("recipe", "statistics_file"):
        record.pop(key)
    body = {
        "format": FORMAT,
        "version": VERSION,
        "model": {name: list(shape) for name, shape in report._shapes.items()},
        "options": {**options, "recipe": report.recipe.name},
        "statistics": _statistics(report, place, overwrite),
        "report": record,
    }
    text = json.dumps(finite(body), indent=1)
    with paths.output(place, report=True, overwrite=overwrite) as out:
        out.write(text.encode())
        out.finish()


def _statistics(report: PlanReport, place: Path, overwrite: bool) -> dict[str, Any] | None:
    """The file of the statistics that the plan goes by, and their digest."""
    if report.statistics_file is not None:
        return asdict(report.statistics_file)
    statistics = report.recipe.statistics
    if statistics is None:
        return None
    if not hasattr(statistics, "digest"):
        raise InputError(
            f"a plan is saved with statistics of a calibration, not with a {type(statistics).__name__} "
            "(pass what collect_statistics returned)",
            code="I635",
        )
    file = statistics.path
    if file is None or not os.path.isfile(file):
        file = os.fspath(place.with_suffix(".statistics.safetensors"))
        statistics.save(file, overwrite=overwrite)
    beside = os.path.dirname(os.path.abspath(file)) == os.path.dirname(os.path.abspath(place))
    return asdict(StatisticsFile(os.path.basename(file) if beside else os.path.abspath(file), statistics.digest))


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what :func:`save` wrote, and checks what it says: arguments of :class:`PlanReport`.

    :raises FormatError: if it is something else, or contradicts itself.
    :raises UnsupportedError: if it is of a later version.
    """
    place = paths.regular(Path(path_of(path)))
    if place.stat().st_size > _LONGEST:
        raise FormatError(
            f"{place}: larger than any plan (name a file that PlanReport.save wrote)", file=place, code="F107"
        )
    try:
        document = json.loads(place.read_bytes(), parse_constant=_no_number)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FormatError(f"{place}: not a plan (name a file that PlanReport.save wrote)", file=place, code="F107")
        version = _whole(document["version"])
        if version == VERSION:
            return _plan(document, place)
    except (*_CONTRADICTIONS, InputError) as error:
        raise FormatError(
            f"{place}: a plan that contradicts itself: {_reason(error)} (plan again, and save that)",
            file=place,
            code="F108",
        ) from None
    raise UnsupportedError(
        f"{place}: a plan of version {version} (install a newer wcodec, or plan again)", file=place, code="U106"
    )


def statistics_for(plan: PlanReport, calibrate: Any) -> Statistics | None:
    """The statistics that a plan goes by: those that it was made with, or those of its file.

    :param calibrate: their present path, if it is not the one in the plan.
    :raises InputError: if these are others, or there are none.
    """
    wanted = plan.statistics_file
    if wanted is None:
        if calibrate is not None:
            raise InputError("the plan goes by no statistics (leave calibrate out, or plan again with it)", code="I307")
        statistics: Statistics | None = plan.recipe.statistics
        return statistics
    from .._calibrate.collect import is_given
    from .._calibrate.statistics import Statistics as Kind

    if calibrate is not None and not is_given(calibrate):
        raise InputError(
            f"calibrate={shown(calibrate)} does not go with a plan, which was made by statistics that are there (name "
            "their file, or leave calibrate out)",
            code="I307",
        )
    given = wanted.file if calibrate is None else calibrate
    if not isinstance(given, Kind):
        if not os.path.isfile(given):
            raise InputError(
                f"{given}: the statistics that the plan was made by are not there (pass calibrate= the file that has "
                "them, --calibrate in a terminal, or plan again)",
                file=given,
                code="I622",
            )
        given = Kind.load(given)
    if given.digest != wanted.sha256:
        raise InputError(
            "these are not the statistics that the plan was made by (pass calibrate= the file that has them, "
            "--calibrate in a terminal, or plan again)",
            code="I622",
        )
    return given


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {shown(error.args[0] if error.args else '')}"
    return str(error) or type(error).__name__


def _no_number(text: str) -> Any:
    _must(False, f"{text} is no number that a plan can have")


def _must(fits: bool, reason: str) -> None:
    if not fits:
        raise ValueError(reason)


def _plan(document: dict[str, Any], place: Path) -> dict[str, Any]:
    options, record = dict(document["options"]), document["report"]
    name = _text(options.pop("recipe"))
    _must(set(options) <= _OPTIONS, f"there is no option {', '.join(sorted(map(str, set(options) - _OPTIONS)))}")
    feedback = options.pop("feedback", True)
    _must(isinstance(feedback, bool), "feedback is true or false")
    # It raises whatever is wrong with one of them.
    encode_options(**options)
    shapes = {_text(key): _shape(value) for key, value in document["model"].items()}
    _must(bool(shapes), "there is no tensor")
    statistics = None
    if document["statistics"] is not None:
        file, digest = (_text(document["statistics"][key]) for key in ("file", "sha256"))
        _must(bool(file) and "\0" not in file, "the file of statistics has no name")
        statistics = StatisticsFile(os.path.join(place.parent, file), digest)
    quality = record["quality"]
    recipe = {key: options.get(key) for key in ("scheme", "bits", "trellis", "steps", "rules")}
    return {
        "target": _text(record["target"]),
        "recipe": Recipe(name, **recipe, coder=options.get("coder", "rans")),
        "file_bytes": _whole(record["file_bytes"]),
        "bits": _real(record["bits"]),
        "candidates": tuple(_record(Candidate, one) for one in _list(record["candidates"])),
        "roles": tuple(_record(PlannedTensors, one) for one in _list(record["roles"])),
        "tensors": tuple(_record(PlannedTensors, one) for one in _list(record["tensors"])),
        "quality": None if quality is None else _record(MeasuredQuality, quality),
        "seconds": _real(record["seconds"]),
        "statistics_file": statistics,
        "_options": {**options, "feedback": feedback},
        "_shapes": shapes,
    }


def _list(value: Any) -> list[Any]:
    _must(isinstance(value, list), f"{type(value).__name__} where a list belongs")
    return list(value)


def _text(value: Any) -> str:
    _must(isinstance(value, str), f"{type(value).__name__} where text belongs")
    return str(value)


def _whole(value: Any) -> int:
    _must(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62, "a count that is none")
    return int(value)


def _flag(value: Any) -> bool:
    _must(isinstance(value, bool), f"{type(value).__name__} where true or false belongs")
    return bool(value)


def _real(value: Any) -> float:
    # As infinity is written: the perplexity of a model that predicts nothing.
    if value is None:
        return math.inf
    _must(isinstance(value, int | float) and not isinstance(value, bool), "text where a number belongs")
    return float(value)


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(map(_whole, _list(value)))
    _must(len(shape) <= _MOST_DIMENSIONS, "more dimensions than a tensor has")
    return shape


_KINDS: Mapping[str, Callable[[Any], Any]] = {"str": _text, "int": _whole, "float": _real, "bool": _flag}


def _record(kind: type[_T], record: Any) -> _T:
    """A record of values of the kinds that it has, and of no others."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        name, _, optional = str(field.type).partition(" | ")
        value = record[field.name]
        values[field.name] = None if optional and value is None else _KINDS[name](value)
    _must(set(record) == set(values), "there is something that a plan has not")
    return kind(**values)


def check_source(plan: PlanReport, src: Any) -> None:
    """Refuses a source that a plan was not made of: by names and shapes of its tensors.

    :raises InputError: if it is another one.
    """
    shapes = _shapes_of(src)
    for name, shape in plan._shapes.items():
        if name not in shapes:
            raise InputError(
                f"tensor '{name}': the plan has it, and this model has not (plan this model, or name the one that was "
                "planned)",
                tensor=name,
                code="I636",
            )
        if shapes[name] != shape:
            raise InputError(
                f"tensor '{name}': it has shape {list(shapes[name])}, and in the plan {list(shape)} (plan this model, "
                "or name the one that was planned)",
                tensor=name,
                code="I636",
            )
    more = next((name for name in shapes if name not in plan._shapes), None)
    if more is not None and not plan._options.get("skip"):
        raise InputError(
            f"tensor '{more}': the plan does not have it (plan this model, or name the one that was planned)",
            tensor=more,
            code="I636",
        )


def _shapes_of(src: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a source's tensors; of files only headers are read."""
    from .. import _native
    from .._file.sources import tensor_source
    from .._models.original import is_model
    from .loading import tensors_of

    if is_model(src):
        src = tensors_of(src)
    if isinstance(src, Mapping):
        return {name: tuple(shape) for name, _, shape, _ in tensor_source(src)[0]}
    path = Path(path_of(src))
    if _native.quantized_checkpoint(path, False) is not None:
        # Values have other shapes than what is stored, and scales are none of them.
        from .._models.checkpoint import Checkpoint

        checkpoint = Checkpoint(path)
        return {name: tuple(checkpoint.shape(name)) for name in checkpoint}
    shapes: dict[str, tuple[int, ...]] = {}
    headers: dict[str, Any] = {}
    for name, file in _native.checkpoint(path, False)[0]:
        if str(file) not in headers:
            headers[str(file)] = _header(str(file))
        try:
            shapes[name] = tuple(headers[str(file)][name]["shape"])
        except (KeyError, TypeError):
            raise FormatError(
                f"{file}: tensor '{name}' has no shape (download it again)", file=str(file), code="F104"
            ) from None
    return shapes


def _header(file: str) -> Any:
    try:
        with open(file, "rb") as opened:
            return json.loads(opened.read(min(int.from_bytes(opened.read(8), "little"), _LONGEST)))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{file}: not a safetensors file: {error} (download it again)", file=file, code="F104"
        ) from None
