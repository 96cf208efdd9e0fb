"""`waggle report`: what the swarm gave a node, on one page.

Only what was measured is told: the held-out rates before and after that the run's end or `waggle eval RUN` left in the
folder, what `waggle replay` has shown, and the counts of the node's own files. What was not measured is said with the
command that measures it.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from waggle.core.keys import Key, peer_name
from waggle.node.evaluate import Score
from waggle.node.explaining import summary
from waggle.node.recording import arrivals
from waggle.node.replaying import ALONE, WITHOUT, Replay, replays
from waggle.node.runfolder import RunFolder, node_folders, read_noun
from waggle.node.status import NodeStatus, read_status
from waggle.node.view import shown


def report_command(console: Console, path: Path) -> None:
    """Print the page of every node.

    Raises:
        RunError: it is no run folder, or a file in it is damaged.
    """
    for folder, status in zip(map(RunFolder, node_folders(path)), read_status(path), strict=True):
        known = replays(folder)
        name = peer_name(Key.load(folder.key_file).id) if folder.key_file.exists() else "key kept elsewhere"
        console.print(f"{folder.path.name} ({name}): {status.round} rounds of {folder.config().model.name}")
        for line in (*_gain(path, folder), *_twin(folder, known), *_traffic(status)):
            console.print(f"  {line}", soft_wrap=True)
        table = _peers(folder, known)
        console.print(table if table.row_count else "  it has not met any experience of peers")


def _gain(path: Path, folder: RunFolder) -> Iterator[str]:
    """Before and after, of those questions that steer nothing."""
    before, after = path / "before.bin", path / f"after-{folder.path.name}.bin"
    exported = folder.model / "waggle.json"
    if not (before.exists() and after.exists()):
        yield f"held-out questions: not asked yet; `waggle eval {path}` asks them"
        return
    first, last = (read_noun(Score, file).over() for file in (before, after))
    yield f"held-out questions answered right, of {last.asked}: {shown(first)} before, {shown(last)} after"
    if exported.exists() and exported.stat().st_mtime > after.stat().st_mtime:
        yield f"it has learned since; `waggle eval {path}` asks again"


def _twin(folder: RunFolder, known: list[Replay]) -> Iterator[str]:
    """Against itself without any peer."""
    alone = next((replay for replay in known if replay.label == ALONE), None)
    command = f"waggle replay {folder.path} --alone"
    if alone is None:
        yield f"what it would have learned by itself is not known; `{command}` plays it"
        return
    yield f"alone, {alone.rounds} rounds: {alone.without:.2f}, with peers {alone.with_it:.2f}"
    worth = alone.worth
    yield f"so the swarm gave {worth.difference:+.2f} [{worth.low:+.2f}, {worth.high:+.2f}]; {_verdict(alone)}"


def _verdict(replay: Replay) -> str:
    """A difference in words. Its interval speaks of other questions, not of other runs."""
    if replay.worth.low > 0:
        return "more than the choice of questions explains"
    return "less than nothing" if replay.worth.high < 0 else "no more than the choice of questions may explain"


def _traffic(status: NodeStatus) -> Iterator[str]:
    share = f"{status.foreign / status.trained:.0%}" if status.trained else "none"
    yield f"{share} of the groups it trained on were of peers"
    yield f"{status.sent_bytes / 1000:.0f} kB sent and {status.received_bytes / 1000:.0f} kB received since its start"


def _peers(folder: RunFolder, known: list[Replay]) -> Table:
    """Whose experience came, what became of it, and what it was worth where that was replayed."""
    bytes_of: Counter[str] = Counter()
    came: Counter[str] = Counter()
    for admitted in (one for arrival in arrivals(folder.arrivals_file) for one in arrival.admitted):
        bytes_of[peer_name(admitted.group.author)] += admitted.size_bytes
        came[peer_name(admitted.group.author)] += 1
    worth = {replay.label.removeprefix(WITHOUT): replay.worth for replay in reversed(known)}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("peer", "came", "kB", "used", "not used, by reason", "worth"):
        table.add_column(title, justify="left" if title in ("peer", "not used, by reason") else "right")
    told = {one.peer: one for one in summary(folder)}
    for peer in sorted({*told, *came}, key=lambda peer: (-(told[peer].used if peer in told else 0), peer)):
        one = told.get(peer)
        why_not = ", ".join(f"{reason} {count}" for reason, count in sorted(one.not_used.items())) if one else ""
        value = worth.get(peer)
        gain = f"{value.difference:+.2f} [{value.low:+.2f}, {value.high:+.2f}]" if value else "-"
        used = str(one.used if one else 0)
        table.add_row(peer, str(came[peer]), f"{bytes_of[peer] / 1000:.0f}", used, why_not or "-", gain)
    return table
