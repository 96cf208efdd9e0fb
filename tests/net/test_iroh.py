"""The real network keeps the contract, in a network namespace that holds loopback alone."""

import json
import os
import subprocess
import sys

import pytest

from tests.net.iroh_contract import NO_NAMESPACE, REAL
from tests.net.test_contract import CHECKS
from waggle.net.iroh import split_address

ALONE = """
import socket
from waggle.net.namespace import loopback_only
assert loopback_only()
print([name for _, name in socket.if_nameindex()])
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
    print("connected")
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.net.iroh_contract"],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with threads cannot enter a namespace
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_NAMESPACE:
        pytest.skip("this system gives processes no network of their own, and real connections are tested only in one")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("check", [check.__name__ for check in (*CHECKS, *REAL)])
def test_contract(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""


def test_a_network_of_its_own_has_loopback_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    if "assert loopback_only()" in done.stderr:
        pytest.skip("this system gives processes no network of their own")
    assert done.stdout.splitlines() == ["['lo']", "connected", "Network is unreachable"], done.stderr


REFUSED = """
import os, socket
from waggle.net import namespace
def refuse():
    raise PermissionError(1, "Operation not permitted")
namespace._enter = refuse
before = os.readlink("/proc/self/ns/net")
print(namespace.loopback_only(), os.readlink("/proc/self/ns/net") == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_where_it_is_refused_nothing_has_changed() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


@pytest.mark.parametrize(
    ("address", "relay", "direct"),
    [
        ("192.0.2.7:4242", None, ["192.0.2.7:4242"]),
        (
            "https://relay.example,192.0.2.7:1,[2001:db8::1]:2",
            "https://relay.example",
            ["192.0.2.7:1", "[2001:db8::1]:2"],
        ),
        ("https://relay.example", "https://relay.example", []),
    ],
)
def test_an_address_names_a_relay_and_direct_ways(address: str, relay: str | None, direct: list[str]) -> None:
    assert split_address(address) == (relay, direct)
