"""What a page is told: all there is, then what is new, and never more than a page can bear."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.parts import OTHER, event, group, made, round_, used, write
from waggle.core.codec import encode
from waggle.core.keys import peer_name
from waggle.dashboard import feed as feeding
from waggle.dashboard.feed import Feed
from waggle.node.evaluate import FamilyScore, Score


def told(message: bytes) -> list[dict[str, Any]]:
    assert message.startswith(b"data: ")
    assert message.endswith(b"\n\n")
    found: list[dict[str, Any]] = json.loads(message[6:])
    return found


def kinds(message: bytes) -> list[str]:
    return [one["kind"] for one in told(message)]


def test_a_page_gets_what_there_is_and_then_what_is_new(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    round_(folder, 1, heldout={"chain_sum": [3, 10], "other": [1, 10]})
    used(folder)
    group(folder, "2 + 2 =", ("4", 1.0), ("5", 0.0), ("?", None))
    feed = Feed([tmp_path / "run"])
    feed.look()
    present, queue = feed.watch()
    assert kinds(present) == ["hello", "node", "round", "event", "group", "peer", "state"]
    _, node, first, seen, asked, peer, state = told(present)
    assert (node["node"], node["name"], node["config"]["round"]["local"]) == ("run/node-1", "node-1", 3)
    assert first["heldout"][0] == pytest.approx(0.2)
    assert first["heldout"][1] < 0.2 < first["heldout"][2]
    assert (seen["event"], seen["peer"], seen["factors"]) == ("used", peer_name(OTHER), {"trust": 0.5})
    assert asked["answers"] == [["4", 1.0], ["5", 0.0], ["?", None]]
    assert (peer["counts"], state["running"]) == ({"used": 1}, False)
    feed.look()
    assert queue.empty()
    round_(folder, 2)
    feed.look()
    (new,) = told(queue.get_nowait() or b"")
    assert (new["kind"], new["round"]) == ("round", 2)


def test_nodes_that_start_later_and_runs_that_are_not_there_yet_appear(tmp_path: Path) -> None:
    feed = Feed([tmp_path / "run"])
    feed.look()
    present, queue = feed.watch()
    assert kinds(present) == ["hello"]
    made(tmp_path / "run")
    feed.look()
    assert kinds(queue.get_nowait() or b"") == ["node", "state"]
    made(tmp_path / "run", 2).lock()
    feed.look()
    head, state = told(queue.get_nowait() or b"")
    assert (head["node"], state["running"]) == ("run/node-2", True)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for place in ("a", "b"):
        made(tmp_path / place / "run")
    feed = Feed([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    feed.look()
    assert len({node.id for node in feed.nodes.values()}) == 2


def test_damaged_lines_tell_nothing_and_stop_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    for file in (folder.metrics_file, folder.events_file, folder.experience_file):
        file.write_text('{"round": "x"}\n{\n[]\n{"event": 7, "peer": 3, "round": []}\n{"author": "zz", "answers": 1}\n')
    round_(folder, 3)
    (tmp_path / "run" / "before.bin").write_bytes(b"no score")
    feed = Feed([tmp_path / "run"])
    feed.look()
    assert kinds(feed.watch()[0]) == ["hello", "node", "round", "state"]


def test_before_the_first_round(tmp_path: Path) -> None:
    made(tmp_path / "run")
    score = Score(0, (FamilyScore("chain_sum", 100, 20.0, 0),), 0)
    (tmp_path / "run" / "before.bin").write_bytes(encode(score))
    feed = Feed([tmp_path / "run"])
    feed.look()
    assert told(feed.watch()[0])[1]["before"] == [0.2, *score.over().interval]


def test_after_ten_thousand_events_there_is_no_more_than_after_a_thousand(tmp_path: Path) -> None:
    folder, sizes = made(tmp_path / "run"), []
    feed = Feed([tmp_path / "run"])
    for number in range(10_000):
        used(folder, peer=bytes([number % 256, number // 256 % 256]) * 16, detail="x" * 500)
        if number % 10 == 0:
            round_(folder, 1 + number // 10)
            group(folder, "q" * 5000, *[("a" * 5000, 0.0)] * 64)
        if number % 500 == 499:
            feed.look()
            sizes.append(len(feed.watch()[0]))
    assert max(sizes[2:]) < 1.3 * sizes[2]
    (node,) = feed.nodes.values()
    assert len(node.events) <= feeding.EVENTS
    assert len(node.rounds) <= feeding.ROUNDS
    assert len(node.groups) <= feeding.GROUPS
    assert len(node.totals) <= feeding.MAX_PEERS


def test_a_page_that_falls_behind_is_sent_away_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "WAITING", 5)
    folder, feed = made(tmp_path / "run"), Feed([tmp_path / "run"])
    feed.look()
    (_, slow), (_, quick) = feed.watch(), feed.watch()
    for number in range(1, 9):
        round_(folder, number)
        feed.look()
        assert kinds(quick.get_nowait() or b"") == ["round"]
    assert feed.num_watchers == 1
    waiting = [slow.get_nowait() for _ in range(slow.qsize())]
    assert waiting[-1] is None
    assert len(waiting) == 5


def test_the_solo_twin_comes_from_a_replay(tmp_path: Path) -> None:
    folder, feed = made(tmp_path / "run"), Feed([tmp_path / "run"])
    feed.look()
    _, queue = feed.watch()
    for rounds in (2, 4):
        twin = folder.replays / f"alone-{rounds}"
        twin.mkdir(parents=True)
        for number in range(1, rounds + 1):
            line = {"round": number, "reward": 0.1, "own_groups": 1, "foreign_groups": 0, "peers": 0, "families": {}}
            write(twin / "metrics.jsonl", **line, heldout={"chain_sum": [number, 10]})
    feed.look()
    (one,) = told(queue.get_nowait() or b"")
    assert one["kind"] == "twin"
    assert [point[:2] for point in one["heldout"]] == [[n, pytest.approx(n / 10)] for n in (1, 2, 3, 4)]


def test_what_happens_to_a_node_is_told(tmp_path: Path) -> None:
    folder, feed = made(tmp_path / "run"), Feed([tmp_path / "run"])
    feed.look()
    _, queue = feed.watch()
    event(folder, "quarantined", peer="eve", reason="not-drawn", until_round=20)
    event(folder, "checkpoint", round=3)
    event(folder, "refused", peer="eve", reason="quarantined", detail="<b>")
    event(folder, "round", round=3, seconds=1.5, trained_s=9.0, sent_bytes=10, received_bytes=20, memory_mb=300.0)
    feed.look()
    found = told(queue.get_nowait() or b"")
    assert [(one["kind"], one.get("event")) for one in found] == [
        ("event", "quarantined"),
        ("event", "refused"),
        ("peer", None),
        ("traffic", None),
    ]
    assert found[-1]["memory_mb"] == 300.0
