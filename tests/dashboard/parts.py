"""Run folders as nodes leave them, a line at a time."""

from pathlib import Path
from typing import Any

from tests.node.parts import charter_of, config, keys
from waggle.core.events import json_line
from waggle.core.keys import peer_name
from waggle.core.types import Family
from waggle.node.runfolder import RunFolder, describe

FAMILY = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)
ME, OTHER = (key.id for key in keys(2))


def made(path: Path, number: int = 1) -> RunFolder:
    """A node of a swarm's folder."""
    folder = RunFolder(path / f"node-{number}")
    folder.path.mkdir(parents=True)
    keys(number)[number - 1].save(folder.key_file)
    RunFolder.create(folder.path, config("model.name=scripted"), charter_of([FAMILY])).close()
    describe(path, "swarm")
    return folder


def write(file: Path, **line: Any) -> None:
    """Append a line."""
    with open(file, "a") as handle:
        handle.write(json_line(line))


def round_(folder: RunFolder, number: int, reward: float = 0.25, **more: Any) -> None:
    """A round's line of metrics."""
    line: dict[str, Any] = {"round": number, "reward": reward, "own_groups": 2, "foreign_groups": 1, "peers": 3}
    line |= {"families": {"chain_sum": [reward * 8, 8]}, "refused": {}, "pool": 4, "generated_tokens": 10.0 * number}
    write(folder.metrics_file, **line, trained_tokens=5.0 * number, **more)


def event(folder: RunFolder, name: str, **fields: Any) -> None:
    """An event."""
    write(folder.events_file, at_s=1_700_000_000.0, event=name, **fields)


def used(folder: RunFolder, peer: bytes = OTHER, **more: Any) -> None:
    """A group of a peer's that was trained on."""
    fields = {"round": 1, "peer": peer_name(peer), "family": "chain_sum", "reason": "drawn", "factors": {"trust": 0.5}}
    event(folder, "used", **(fields | more))


def group(folder: RunFolder, question: str, *answers: tuple[str, float | None], author: bytes = ME) -> None:
    """A group as text."""
    line = {"round": 1, "author": author, "env": "chain_sum", "fate": "own", "question": question, "truth": "4"}
    write(folder.experience_file, **line, answers=[list(one) for one in answers])
