"""What is pulled must be what was announced, in size as well: a node plans what it pulls by it."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.node.test_exchange import CHARTER, GOOD, World, never, sealed
from waggle.core.sealing import announce
from waggle.swarm.sampling import offers


@pytest.mark.parametrize("lie", [{"size_bytes": 0}, {"completions": 1}])
def test_experience_larger_than_announced_is_refused(lie: dict[str, int]) -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        await world.good.offer(1, sealed(1))
        news = announce(CHARTER, sealed(1))
        entries = tuple(replace(entry, **lie) for entry in news.entries)
        await world.passing(world.me.pull(GOOD.id, offers(replace(news, entries=entries), GOOD.id)))
        assert world.result == []
        assert world.me.refused == {"signature": len(entries)}

    asyncio.run(story())
