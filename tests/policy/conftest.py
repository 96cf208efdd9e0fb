"""Policies that tests may share because they do not change them."""

import pytest

from waggle.policy.load import load
from waggle.policy.policy import Policy


@pytest.fixture(scope="session")
def tiny() -> Policy:
    return load("tiny")


@pytest.fixture(scope="session")
def tiny_b() -> Policy:
    return load("tiny-b")
