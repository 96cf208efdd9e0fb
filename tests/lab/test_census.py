"""What is counted: means over rounds, who stalled and who went hungry, and one way to write numbers."""

import json
from pathlib import Path

from waggle.lab.census import Census, Result

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
ENDS = dict.fromkeys(("skill", "skill_worst", "skill_free_riders", "extra_chars", "planted", "reached"), 0.25)


def counted(census: Census, peer: bytes, foreign: int, refused: dict[str, int] | None = None) -> None:
    counts = {"from_hostile": foreign // 2, "admitted": 2, "sent_bytes": 100, "received_bytes": 50}
    census.played(peer, refused or {}, foreign=foreign, **counts)


def played() -> Census:
    census = Census()
    census.close(0, [A, B, C], **ENDS)
    counted(census, A, 2, {"stale": 3})
    counted(census, A, 0)
    counted(census, B, 0)
    census.close(2, [A, B, C], **ENDS)
    return census


def test_who_finished_nothing_stalled_and_who_used_nothing_went_hungry() -> None:
    row = played().rows[-1]
    assert (row.stalled, row.hungry) == (1, 2)
    census = played()
    census.left(C)
    counted(census, A, 1)
    counted(census, b"new" * 10 + b"..", 0)  # came in the midst of the stretch: not held against it
    census.close(4, [A, B], **ENDS)
    assert (census.rows[-1].stalled, census.rows[-1].hungry) == (1, 1)


def test_means_are_over_rounds() -> None:
    row = played().rows[-1]
    assert (row.plays, row.online) == (3, 3)
    assert row.foreign == 2 / 3
    assert row.from_hostile == 1 / 2
    assert row.unused == 2 / 3
    assert (row.sent_bytes, row.received_bytes, row.refused) == (100, 50, 1)


def test_what_is_written_is_fixed(tmp_path: Path) -> None:
    census = played()
    result = Result(tuple(census.rows), census.refused, 7, None, {"seed": 0})
    result.write(tmp_path)
    lines = (tmp_path / "simulate.csv").read_text().splitlines()
    assert lines[2].startswith("2,3,3,0.250000,0.250000,0.250000,0.666667,0.500000,0.666667,2.000000,1.000000,")
    summary = json.loads((tmp_path / "simulate.json").read_text())
    assert summary["refused"] == {"stale": 3}
    assert summary["total"] == {"plays": 3, "stalled": 1, "hungry": 2}
    assert (summary["spread_half"], summary["spread_all"]) == (7, None)
    assert "half of them after 7 rounds, 25% in the end" in result.sentence()
