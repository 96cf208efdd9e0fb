"""Addresses as text, and the queue of a subscription."""

import asyncio

import pytest

from waggle.core.errors import ConfigError
from waggle.core.types import Peer
from waggle.net.transport import Delivery, Ruling, Subscription, address_text, read_address


@pytest.mark.parametrize("address", ["memory", "127.0.0.1:4242", "https://relay.example/x@y"])
def test_an_address_survives_its_text(address: str) -> None:
    peer = Peer(bytes(range(32)), address)
    assert read_address(f" {address_text(peer)}\n") == peer


@pytest.mark.parametrize(
    "text", ["", "@", "ab@x", "zz" * 32 + "@x", "ab" * 32, "ab" * 32 + "@", "ab" * 32 + "@" + "x" * 201]
)
def test_no_address_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="not a peer's address"):
        read_address(text)


def test_a_subscription_waits_and_ends() -> None:
    async def run() -> None:
        inbox = Subscription(lambda sender, data: Ruling.DELIVER, 2)
        reading = asyncio.create_task(anext(inbox))
        await asyncio.sleep(0)
        assert not reading.done()
        assert inbox.put(Delivery(b"a", b"1"))
        assert (await reading).data == b"1"
        assert [inbox.put(Delivery(b"a", data)) for data in (b"2", b"3", b"4")] == [True, True, False]
        inbox.close()
        inbox.put(Delivery(b"a", b"too late"))
        assert [delivery.data async for delivery in inbox] == [b"3", b"4"]
        assert inbox.num_dropped == 1

    asyncio.run(run())
