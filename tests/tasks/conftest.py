import pytest

from waggle.core.types import Admission, Charter
from waggle.tasks.families import named_set
from waggle.tasks.taskset import Taskset

FOUNDER = bytes(range(32))


@pytest.fixture(scope="session")
def charter() -> Charter:
    return Charter("test", named_set("starter"), 1, Admission(), 0.25, "CC0-1.0", (), FOUNDER, 0)


@pytest.fixture(scope="session")
def taskset(charter: Charter) -> Taskset:
    return Taskset(charter)
