"""Families by name: any ReasoningGYM environment with its configuration, and the named sets.

A family says what is asked and how: its environment, configuration and the generator's version (all three
are in its digest), how many examples are shown, in which style they show their working, and where an answer
is cut. Environments that cannot be shared, or have no single true answer, are listed with the reason; `check`
finds them by itself.
"""

import json
from typing import Any

from waggle.core.errors import TaskError
from waggle.core.types import Family
from waggle.tasks import gym
from waggle.tasks.working import WORKINGS

HASH_DEPENDENT = "its questions change with PYTHONHASHSEED, so that peers would not agree on them"
CHANGES = "some of its questions change from run to run, so that peers would not agree on them"
NO_TRUTH = "it has no single true answer: its own truth is graded 0"

UNUSABLE: dict[str, str] = {
    **dict.fromkeys(
        ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"), HASH_DEPENDENT
    ),
    "intermediate_integration": "its truths are written differently with another PYTHONHASHSEED",
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), NO_TRUTH),
    "codeio": CHANGES,
    "game_of_life_halting": "its grader takes garbage for right where the truth is False",
}
"""Environments of ReasoningGYM 0.1.25 that a charter cannot hold, and why."""

_TWO_TERMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
_PLUS_MINUS = {"operators": ["+", "-"], "allow_parentheses": False, "allow_negation": False}
_FEW = {"min_num_statements": 2, "max_num_statements": 4}
_QUICK = {"max_tokens": 6, "weight": 24}

_SHORT: tuple[dict[str, Any], ...] = (
    {"env": "chain_sum", "config": _TWO_TERMS, **_QUICK},
    {"env": "basic_arithmetic", "config": {**_TWO_TERMS, **_PLUS_MINUS}, **_QUICK},
    {"env": "needle_haystack", "config": _FEW, "max_tokens": 8, "weight": 12},
)
_WORKED: dict[str, Any] = {  # one draw in sixty-one: its answers are ten times as long
    "env": "chain_sum",
    "config": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "name": "chain_sum_worked",
    "working": "sum-steps",
    "max_tokens": 48,
}
_PAPER = (
    *("base_conversion", "basic_arithmetic", "arc_1d", "bf", "propositional_logic", "fraction_simplification"),
    *("decimal_arithmetic", "calendar_arithmetic", "binary_matrix"),
)
_PAPER_TOKENS = {"arc_1d": 96, "binary_matrix": 96, "bf": 32, "base_conversion": 24, "fraction_simplification": 24}


def family(
    env: str,
    config: dict[str, Any] | None = None,
    *,
    name: str = "",
    shots: int = 3,
    working: str = "",
    max_tokens: int = 16,
    weight: int = 1,
) -> Family:
    """A family of ReasoningGYM questions. Example: `family("chain_sum", {"max_terms": 2}, max_tokens=6)`.

    Raises:
        TaskError: unknown environment, setting or working style, or a value the environment refuses.
    """
    if working and working not in WORKINGS:
        raise TaskError(f"there is no working style {working!r}; known: {', '.join(sorted(WORKINGS))}")
    text = gym.canonical_config(env, config or {})
    return Family(env, "reasoning-gym", text, gym.version(), gym.GRADER, shots, working, max_tokens, name, weight)


def set_names() -> tuple[str, ...]:
    """Names of the sets."""
    return ("starter", "short", "paper", "all")


def named_set(name: str) -> tuple[Family, ...]:
    """The families of a named set, complete as named; `usable` leaves out what a charter cannot hold.

    Raises:
        TaskError: no such set.
    """
    if name in ("starter", "short"):
        return tuple(family(**parts) for parts in ((*_SHORT, _WORKED) if name == "starter" else _SHORT))
    if name == "paper":
        return tuple(family(env, max_tokens=_PAPER_TOKENS.get(env, 16)) for env in _PAPER)
    if name == "all":
        return tuple(family(env, max_tokens=64) for env in gym.environments())
    raise TaskError(f"there is no set {name!r}; the sets are {', '.join(set_names())}")


def why_unusable(wanted: Family) -> str:
    """Why a charter cannot hold the family, or nothing."""
    if wanted.source == "file":
        return ""
    if wanted.env == "number_sequence" and json.loads(wanted.config).get("max_complexity", 3) > 1:
        return "some of its sequences grow without end while they are made; set max_complexity to 1"
    return UNUSABLE.get(wanted.env, "")


def usable(families: tuple[Family, ...]) -> tuple[Family, ...]:
    """Those that a charter can hold."""
    return tuple(f for f in families if not why_unusable(f))
