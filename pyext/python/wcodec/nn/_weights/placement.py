"""Which compressed layers stay in a GPU's memory, which are streamed from where, which stay decoded: sizes in,
placement out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypedDict

from ... import _native
from ..._core import format as fmt
from ..._core.errors import InputError
from ..._core.options import AUTO, RESIDENCIES, choice, size

# A larger ring gains next to nothing, as what is larger than a slot comes in pieces: TinyLlama on an H200 streams at
# 91, 97 and 99 % of its best with rings of 64, 96 and 144 MiB.
_LARGEST_RING = 96 << 20

# Rough costs of decoding, from which only the order of groups comes: seconds of a launch, and stored bytes per second,
# decoded by a GPU, copied to it, and decoded by a CPU.
_LAUNCH = 10e-6
_RATES = {"device": 1e12, "host": 5e10, "disk": 3e9, "cpu": 2e9}


class Settings(TypedDict):
    """A user's settings for where weights are."""

    residency: str
    vram_budget: int | None
    ram_budget: int | None
    cache: int | None
    """None for what a CPU has room for, and nothing on a GPU."""


def checked_settings(
    residency: str | None = None,
    vram_budget: int | str | None = None,
    cache: int | str | None = None,
    ram_budget: int | str | None = None,
) -> Settings:
    """The settings in bytes, if they go together. A ``cache`` of ``"auto"`` is as if it were left out.

    >>> checked_settings(vram_budget="3GB")
    {'residency': 'auto', 'vram_budget': 3000000000, 'ram_budget': None, 'cache': None}

    :param residency: if left out, ``auto`` where there is a budget, which no other has, and ``device`` where not.
    :raises InputError: for a residency that there is not, a size that is none, a budget without ``auto``.
    """
    if residency is None:
        residency = "device" if vram_budget is None and ram_budget is None else "auto"
    choice("residency", residency, RESIDENCIES)
    budget, ram = size("vram_budget", vram_budget, 1), size("ram_budget", ram_budget, 1)
    for name, value in (("vram_budget", budget), ("ram_budget", ram)):
        if value is not None and residency != "auto":
            raise InputError(
                f"{name} goes with residency 'auto', not with {residency!r} (leave one of them out)", code="I307"
            )
    cache_bytes = None if cache == AUTO else size("cache", cache)
    return {"residency": residency, "vram_budget": budget, "ram_budget": ram, "cache": cache_bytes}


def caches_by_itself(settings: Settings) -> bool:
    """Whether a CPU keeps decoded weights as far as there is memory: unless somebody has said how many it is to keep,
    or that it is to take little."""
    scarce = settings["residency"] == "disk" or settings["ram_budget"] is not None
    return settings["cache"] is None and not scarce


def refuse_disk(settings: Settings) -> None:
    """Raises where weights are to be read from a file, and are about to be compressed in memory."""
    if settings["residency"] == "disk":
        raise InputError(
            "residency 'disk' reads a compressed file, and this model would be compressed in memory "
            "(run `wcodec encode MODEL -o FOLDER/`, and load that folder)",
            code="I315",
        )


class Unit(NamedTuple):
    """Tensors that are decoded together, and so are in one place. Sizes are bytes."""

    names: tuple[str, ...]
    stored: int
    """Compressed, in the file."""
    held: int
    """Compressed, in a decoder's memory or in the ring."""
    decoded: int
    """Decoded, in the computing dtype, all of them."""
    scratch: int
    """The shared memory for decoded weights that it needs: all that is decoded at once."""
    use: float = 1.0
    """The mean number of uses for each token: an expert is not always used."""
    looked_up: bool = False
    """Rows are wanted at random, so that it stays compressed on the device, whatever the residency."""
    multiplied: bool = True
    """Something multiplies with it, so that it pays to keep it decoded."""


Takes = Callable[[Sequence[Unit], Sequence[Unit]], int]
"""Memory of a GPU that decoders hold for units that stay there and for units that are streamed, in bytes: compressed
bytes, ring, tables, scratch."""


class Placement(NamedTuple):
    """Names of tensors by where they are. Tensors that are neither streamed nor cached are compressed in the device's
    memory, or, on the CPU, read from the file through the system's page cache."""

    names: frozenset[str] = frozenset()
    """All of them."""
    streamed: frozenset[str] = frozenset()
    """Streamed to a GPU, from the host's memory or from disk."""
    disk: frozenset[str] = frozenset()
    """Read from the file each time."""
    cached: Mapping[str, int] = {}
    """Each with its decoded bytes."""


def ring_bytes(largest: int) -> int:
    """Bytes to ask for, for the ring that streamed units pass through of which the largest takes ``largest``."""
    return min(_native.ring_slots() * largest, _LARGEST_RING)


def device_bytes(resident: Sequence[Unit], streamed: Sequence[Unit], takes: Takes, cached: Sequence[Unit] = ()) -> int:
    """Memory that a model's compressed layers take on a GPU, in bytes: that of decoders, the memory that weights are
    decoded into, and decoded weights that stay."""
    scratch = max((unit.scratch for unit in (*resident, *streamed)), default=0)
    return takes(resident, streamed) + sum(unit.decoded for unit in cached) + scratch


def choose_cached(units: Sequence[Unit], cache: int, where: str) -> list[Unit]:
    """The units that stay decoded, of ``cache`` bytes at most: those that save most time for each byte.

    >>> block = Unit(("a", "b"), stored=80, held=90, decoded=200, scratch=200)
    >>> expert = Unit(("c",), stored=80, held=90, decoded=200, scratch=200, use=0.25)
    >>> choose_cached([expert, block], 399, "device") == [block]
    True

    :param where: the place of the compressed bytes otherwise: ``device``, ``host`` or, without a GPU, ``cpu``.
    """

    def benefit(unit: Unit) -> float:
        return unit.use * (_LAUNCH + unit.stored / _RATES[where]) / unit.decoded

    # A table that is only looked up by rows costs little already. On a GPU it is needed compressed, too, whatever
    # multiplies.
    wanted = [u for u in units if u.decoded and (not u.looked_up or (where == "cpu" and u.multiplied))]
    chosen: set[Unit] = set()
    for unit in sorted(wanted, key=benefit, reverse=True):
        if unit.decoded <= cache:
            chosen.add(unit)
            cache -= unit.decoded
    return [unit for unit in units if unit in chosen]


def spread(units: Sequence[Unit], count: int) -> list[Unit]:
    """``count`` units, as far apart as they can be: while others compute, they can be copied.

    >>> blocks = [Unit((str(i),), 1, 1, 2, 2) for i in range(8)]
    >>> [unit.names[0] for unit in spread(blocks, 3)]
    ['1', '4', '6']
    """
    return [units[(2 * i + 1) * len(units) // (2 * count)] for i in range(count)]


def choose_streamed(
    units: Sequence[Unit],
    cached: Sequence[Unit],
    takes: Takes,
    budget: int,
    others: int = 0,
    what: str = "vram_budget",
) -> list[Unit]:
    """The fewest units to stream so that everything takes at most ``budget`` bytes of the device (or, of those that are
    streamed, to read from disk, so that the host keeps to its budget).

    Units that are used seldom are streamed before others, and those that are used alike evenly over the model. Units
    that are looked up are not streamed.

    :param units: those that are not cached, in the order of the model.
    :param takes: the bytes that decoders hold on the device.
    :param others: the bytes that the model takes besides.
    :param what: the name of the budget, for the message.
    :raises InputError: if no choice fits; it says the least budget that would.
    """
    movable = [unit for unit in units if not unit.looked_up]

    def total(chosen: list[Unit]) -> int:
        moved_away = set(chosen)
        return others + device_bytes([unit for unit in units if unit not in moved_away], chosen, takes, cached)

    chosen, least = _fewest(movable, total, budget)
    if chosen is not None:
        return chosen
    advice = "allow more, or cache less" if cached else "allow more, or load a smaller model"
    refuse_budget(what, budget, least, advice)


def choose_on_disk(units: Sequence[Unit], takes: Takes, budget: int, what: str = "ram_budget") -> list[Unit]:
    """The fewest units to read from disk so that the others, and what passes through, take at most ``budget`` bytes of
    the host's memory; chosen as those of :func:`choose_streamed`.

    :param takes: memory of the host for units that stay there, and for those that are read from disk.
    :raises InputError: if no choice fits; it says the least budget that would.
    """

    def total(chosen: list[Unit]) -> int:
        moved_away = set(chosen)
        return takes([unit for unit in units if unit not in moved_away], chosen)

    chosen, least = _fewest(list(units), total, budget)
    if chosen is not None:
        return chosen
    refuse_budget(what, budget, least, "allow more")


def refuse_budget(what: str, budget: int, least: int, advice: str) -> NoReturn:
    """Raises that a budget is too small."""
    raise InputError(
        f"{what} of {fmt.size(budget)} is too small for this model, which takes at least {least} bytes, "
        f"{fmt.size(least)} ({advice})",
        code="I523",
    )


def _fewest(movable: list[Unit], total: Callable[[list[Unit]], int], budget: int) -> tuple[list[Unit] | None, int]:
    """The fewest units to move away so that ``total`` of them keeps to a budget; none where no choice does, and the
    least that one takes."""
    by_use = [[unit for unit in movable if unit.use == use] for use in sorted({unit.use for unit in movable})]

    def moved(count: int) -> list[Unit]:
        moved_units: list[Unit] = []
        for units_of_use in by_use:
            moved_units += spread(units_of_use, min(count - len(moved_units), len(units_of_use)))
        return moved_units

    # Moving frees no more than what units hold, so no fewer than these can be enough: that saves trying.
    excess, first = total([]) - budget, 0
    for held in sorted((unit.held for unit in movable), reverse=True):
        if excess <= 0:
            break
        excess -= held
        first += 1
    for count in range(first, len(movable) + 1):
        moved_first = moved(count)
        if total(moved_first) <= budget:
            return moved_first, budget
    return None, min(total(moved(count)) for count in range(len(movable) + 1))
