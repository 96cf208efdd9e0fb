"""The sender's filter."""

import pytest

from tests.swarm.world import group
from waggle.core.config import ShareConfig
from waggle.swarm.keep import KEEPS


@pytest.mark.parametrize(
    ("name", "with_signal", "without"),
    [("signal", None, "no-signal"), ("all", None, None), ("none", "not-sharing", "not-sharing")],
)
def test_the_named_filters(name: str, with_signal: str | None, without: str | None) -> None:
    assert KEEPS[name](group(0, (0.0, 1.0))) == with_signal
    assert KEEPS[name](group(0, (1.0, 1.0))) == without


def test_every_setting_has_its_filter() -> None:
    schema = ShareConfig.model_json_schema()["properties"]["publish"]
    assert set(KEEPS) == set(schema["enum"])
