import pytest

from waggle.core.types import Admission, Charter
from waggle.tasks.families import family
from waggle.tasks.taskset import Taskset

FOUNDER = bytes(range(32))

_TWO = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
_THREE = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
FAMILIES = (
    family("chain_sum", _TWO),
    family("products", _TWO),
    family("gcd", {"max_value": 100}),
    family("chain_sum", _THREE, name="worked", working="sum-steps", max_tokens=48),
)


@pytest.fixture(scope="session")
def charter() -> Charter:
    return Charter("test", FAMILIES, 1, Admission(), 0.25, "CC0-1.0", (), FOUNDER, 0)


@pytest.fixture(scope="session")
def taskset(charter: Charter) -> Taskset:
    return Taskset(charter)
