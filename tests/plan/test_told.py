"""A plan is told while it is made, and shown in the order of layers."""

from __future__ import annotations

from wcodec._models.running import WindowCount
from wcodec._plan.plan_report import _by_number
from wcodec._plan.records import PlannedTensors


def test_a_guess_stays_ahead() -> None:
    seen: list[tuple[int, int]] = []
    count = WindowCount(lambda done, total: seen.append((done, total)), 20, guess=True)
    for _ in range(200):
        count(1)
    assert all(done < total for done, total in seen)
    assert [total for _, total in seen] == sorted(total for _, total in seen) and seen[0] == (1, 20)


def test_a_known_total_is_met_once() -> None:
    seen: list[tuple[int, int]] = []
    count = WindowCount(lambda done, total: seen.append((done, total)), 8, guess=False)
    for _ in range(4):
        count(2)
    assert seen == [(2, 8), (4, 8), (6, 8), (8, 8)]


def test_layers_go_by_their_numbers() -> None:
    names = ["h.10.w", "h.2.w", "embed.w", "h.2.b", "h.1.w"]
    rows = [PlannedTensors(name, 1, 1, "rate", 4.0, 1, 0.0, None, None, None) for name in names]
    assert [row.name for row in sorted(rows, key=_by_number)] == ["embed.w", "h.1.w", "h.2.b", "h.2.w", "h.10.w"]
