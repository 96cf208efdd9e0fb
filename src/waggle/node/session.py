"""One node in this process, from its first line on the screen to its last: `waggle join`, and each node of a swarm.

Everything is in the run folder before anything is started, so a node always continues: a new run from round 0, another
from where it stands, be it after an end, a crash or a power cut. It is asked nothing. The model is loaded, the network
comes up on a thread of its own, and rounds are played until time or rounds are over or somebody asks for an end; then
the node is checkpointed and says goodbye.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from waggle.core.clock import SystemClock
from waggle.core.config import Config
from waggle.core.errors import NetworkError
from waggle.core.files import disk_errors
from waggle.core.keys import Key
from waggle.core.types import Charter, Peer
from waggle.net.transport import Transport
from waggle.node import build, place
from waggle.node.best import close_steering
from waggle.node.host import Host
from waggle.node.node import Node
from waggle.node.round import play
from waggle.node.runfolder import RunFolder
from waggle.node.view import View
from waggle.tasks.grade import Graders

REST_S = 1.0
"""How often a node that rests looks whether it may go on."""


@dataclass
class Session:
    """A node being played."""

    console: Console
    folder: RunFolder
    config: Config
    charter: Charter
    node: Node
    graders: Graders
    host: Host
    address: str = ""
    """Where the node is reachable, while it is online."""
    trouble: str = ""
    """Why it could not go online, if it could not."""
    rested: str = ""
    """Why the node rests now, if it does."""

    def close(self) -> None:
        """End the graders and give the folder back."""
        self.graders.close()
        self.folder.close()


def prepare(path: Path, config: Config, key: Key, charter: Charter, bootstrap: Sequence[Peer]) -> RunFolder:
    """Write down all that a new node needs. Its folder stays locked.

    Raises:
        RunError: the folder holds a run already, or the disk refuses.
    """
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    key.save(RunFolder(path).key_file)
    place.keep_bootstrap(RunFolder(path), bootstrap)
    return RunFolder.create(path, config, charter)  # last: what makes it a run


def open_node(
    console: Console,
    folder: RunFolder,
    files: Path,
    overrides: Callable[[Config], Config] = lambda c: c,
    transport: Transport | None = None,
) -> Session:
    """The node of a locked run folder, where it stands.

    Args:
        files: the folder of task files.
        transport: its connection, not yet started; the network of its configuration where left out.

    Raises:
        WaggleError: whatever is wrong with model, tasks, memory or disk, in one sentence.
    """
    with ExitStack() as undo:
        undo.enter_context(closing(folder))
        config, charter, key = overrides(folder.config()), folder.charter(), Key.load(folder.key_file)
        begun = folder.newest_checkpoint() is not None
        learner, config = build.make_learner(config, begun, lambda line: console.print(line, highlight=False))
        graders = undo.enter_context(closing(Graders(charter.families, functions=bool(config.tasks.file))))
        clock = SystemClock()
        host = Host(folder, config, clock)
        transport = transport or place.transport_for(folder, key, config, charter, host.pace)
        parts = build.Parts(config, charter, files, graders, clock)
        node, archive = build.make_node(parts, folder, key, learner, transport)
        replayed = node.resume(archive)
        if node.state.round:
            console.print(f"{folder.path.name} goes on after round {node.state.round} ({replayed} rounds replayed)")
        undo.pop_all()
    return Session(console, folder, config, charter, node, graders, host)


async def run(session: Session, view: View | None, stop: Callable[[], bool]) -> None:
    """Play a node until its time is over or `stop` says so, and store where it stands."""
    node, config = session.node, session.config
    limit_s = 60 * config.run.minutes

    def over() -> bool:
        state = node.state
        return stop() or bool(
            (limit_s and state.trained_s >= limit_s) or (config.run.rounds and state.round >= config.run.rounds)
        )

    session.console.print(node.learner.describe(), highlight=False)
    try:
        await _go_online(session)  # what is wrong with the settings is said at once
        while not over():
            if not await _rested(session):
                await play(node)
            if view:
                view.look()
        if node.learner.learns:
            close_steering(node)
        node.checkpoint()
    finally:
        await _go_offline(node)
        session.close()


async def _rested(session: Session) -> bool:
    """Do what the host wants done between two rounds: wait a moment, or change whether the node is online."""
    node, host = session.node, session.host
    await _follow_network(session)
    if why := host.rests():
        if why != session.rested:
            node.events.emit("resting", why=why)
        session.rested = why
        await asyncio.sleep(REST_S)
        return True
    session.rested = ""
    return False


async def _follow_network(session: Session) -> None:
    """Be online while that is allowed and possible; tell others where, also after a move."""
    node = session.node
    if session.host.may_talk():
        try:
            await _go_online(session)
        except NetworkError as error:
            if str(error) != session.trouble:
                node.events.emit("offline", why=str(error))
            session.trouble = str(error)
    elif session.address:
        node.events.emit("offline", why="the bytes of the day are used up; training alone until midnight UTC")
        session.address = ""
        await _go_offline(node)


async def _go_online(session: Session) -> None:
    """Go online, or see where the node is reachable now.

    Raises:
        NetworkError: it cannot listen.
    """
    node, folder = session.node, session.folder
    me = await (node.exchange.transport.start() if session.address else node.start(place.bootstrap_of(folder)))
    if me.address == session.address:
        return
    session.address, session.trouble = me.address, ""
    node.events.emit("online", address=me.address)
    session.console.print(f"listening on {me.address}; {folder.ticket_file} invites others", highlight=False)
    node.where_it_can(lambda: place.keep_address(folder, me, session.charter))


async def _go_offline(node: Node) -> None:
    try:
        await node.close()
    except NetworkError as error:
        node.events.emit("goodbye-failed", why=str(error))


@contextmanager
def interruptible(tied: bool = False) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) asks for an end after the round; the second ends at once and loses that round.

    Args:
        tied: whether the end of the standard input asks for an end, too: so no node outlives who started it.
    """
    asked = threading.Event()

    def handler(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    def wait_for_end() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would be missed at the end of the process
            pass
        asked.set()

    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    if tied:
        threading.Thread(target=wait_for_end, name="tied", daemon=True).start()
    try:
        yield asked.is_set
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)


def play_node(session: Session, quiet: bool = False, tied: bool = False) -> None:
    """Play a node in this process to its end.

    Args:
        quiet: whether rounds are not shown.
        tied: see `interruptible`.
    """
    with interruptible(tied) as stopped, ExitStack() as shown:
        view = None if quiet else shown.enter_context(View(session.console, [session.folder], session.config))
        asyncio.run(run(session, view, stopped))
