"""How a node comes into being, and what it is told of settings and peers: without a model and without a network."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.parts import charter_of, config, keys
from waggle.core.config import load
from waggle.core.errors import ConfigError, RunError
from waggle.core.types import Peer
from waggle.net.requests import MEMBERS_ONLY
from waggle.net.transport import address_text
from waggle.net.wire import Reply
from waggle.node import joining, reachability
from waggle.node.runfolder import RunFolder
from waggle.tasks.families import named_set


def test_what_cannot_be_changed_any_more_is_said() -> None:
    kept = load(None, ["model.threads=2", "run.minutes=5"])
    given = load(None, ["model.threads=4", "run.minutes=7", "net.day_mb=3", "round.local=2"])
    said = set(joining._without_effect(given, kept))
    assert said == {"model.threads stays 2", f"round.local stays {kept.round.local}"}
    assert not list(joining._without_effect(load(None, ["model.threads=2"]), kept))


def test_who_comes_before_anybody_is_online_is_told_to_try_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, config("model.name=scripted"), charter_of(list(named_set("short"))))
    folder.close()
    with pytest.raises(RunError, match=r"no node of .* is online yet; try again in a moment"):
        joining.invitation(None, tmp_path)
    peer = Peer(keys(1)[0].id, "127.0.0.1:4201")
    folder.address_file.write_text(address_text(peer) + "\n")
    invited = joining.invitation(None, tmp_path)
    assert invited
    assert invited.peers == [peer]


class Told:
    """A link whose peer always answers the same."""

    def __init__(self, fine: bool, said: str, origin: str) -> None:
        self.peer, self.origin, self._reply = keys(1)[0].id, origin, Reply(fine, said.encode())

    async def ask(self, body: bytes, max_reply_bytes: int) -> Reply:
        return self._reply


@pytest.mark.parametrize(
    ("link", "what", "cure"),
    [
        (Told(True, "", "1.1.1.1"), "reaches this machine at UDP port 7", ""),
        (Told(True, "", "192.168.0.3"), "from within the same network: of those outside this says nothing", ""),
        (Told(True, "", "[fd00::3]"), "from within the same network", ""),
        (Told(True, "", "https://relay.example"), "reaches this machine at UDP port 7", ""),
        (Told(False, MEMBERS_ONLY, "1.1.1.1"), "cannot be told: the swarm answers its members only", "stop the node"),
        (Told(True, "timed\x1bout", "1.1.1.1"), "nobody reaches this machine at UDP port 7", "forward UDP port 7"),
    ],
)
def test_what_a_peer_says_of_reaching_me_is_put_in_words(link: Any, what: str, cure: str) -> None:
    found = asyncio.run(reachability._back([link], bytes(32), 7))
    assert what in found.what
    assert found.what.isprintable()
    assert bool(found.cure) is bool(cure)
    assert cure in found.cure
    assert ("same network" in what) is ("same network" in found.what)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("run.hours=07:00-07:00",), "run.hours = '07:00-07:00' is no time at all; leave it empty for always"),
        (("model.endpoint=http://h/v1", "model.threads=2"), "model.threads has no effect with model.endpoint"),
        (("model.endpoint=http://h/v1", "model.memory_gb=2"), "model.memory_gb has no effect with model.endpoint"),
        (("model.endpoint=http://h/v1", "learn.learning_rate=0.1"), r"\[learn\] has no effect with model.endpoint"),
    ],
)
def test_settings_without_effect_are_refused(settings: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, settings)


MEASURES = """
import os, signal
from waggle.node.swarming import apart
with apart() as there:
    print(there(os.getpid), flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_what_measures_ends_with_its_command_though_that_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", MEASURES], stdout=subprocess.PIPE)
    assert process.stdout
    assert int(process.stdout.readline())
    process.kill()
    assert process.stdout.read() == b""  # both have ended: they share it
    process.wait()
    process.stdout.close()
