"""How like mine a peer's right answers are: learned from the window, forgotten slowly, never a shut door."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.test_choosing import OPEN, candidate
from tests.swarm.world import ALICE, BOB, rng
from waggle.swarm.choosing import choose
from waggle.swarm.likeness import LEAST, Likeness

PLUS, MINUS = b"p" * 32, b"m" * 32


def test_nobody_is_a_stranger_before_he_has_spoken() -> None:
    assert Likeness().of(ALICE.id, PLUS) == 1.0


def test_it_is_of_one_author_and_one_family() -> None:
    likeness = Likeness()
    for _ in range(20):
        likeness.learn(ALICE.id, PLUS, 0.0)
        likeness.learn(ALICE.id, MINUS, 1.0)
    assert likeness.of(ALICE.id, PLUS) == LEAST
    assert likeness.of(ALICE.id, MINUS) == 1.0
    assert likeness.of(BOB.id, PLUS) == 1.0


def test_the_past_fades() -> None:
    likeness = Likeness()
    for _ in range(40):
        likeness.learn(ALICE.id, PLUS, 0.0)
    seen = []
    for _ in range(30):
        likeness.learn(ALICE.id, PLUS, 1.0)
        seen.append(likeness.of(ALICE.id, PLUS))
    assert seen == sorted(seen)
    assert seen[0] < 0.3
    assert seen[-1] > 0.9


@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0, 1)), max_size=900))
def test_it_is_bounded_and_comes_back_from_its_state(groups: list[tuple[int, float]]) -> None:
    likeness = Likeness()
    for author, inside in groups:
        likeness.learn(author.to_bytes(32, "big"), PLUS, inside)
    again = Likeness(likeness.state())
    assert len(likeness.state()) <= 512
    assert again.state() == likeness.state()
    for author, _ in groups:
        value = again.of(author.to_bytes(32, "big"), PLUS)
        assert LEAST <= value <= 1
        assert value == likeness.of(author.to_bytes(32, "big"), PLUS)


def test_of_peers_who_are_all_unlike_me_little_is_taken() -> None:
    """A group that is drawn is taken with the chance of its likeness; its place stays empty where it is not."""
    reasons: Counter[str] = Counter()
    for seed in range(300):
        pool = [candidate(n, likeness=0.2) for n in range(6)]
        reasons.update(choice.reason for choice in choose(pool, 3, rng("unlike", seed), OPEN))
    assert 0.16 < reasons["drawn"] / 900 < 0.24
    assert reasons["drawn"] + reasons["unlike-mine"] == 900
    assert reasons["not-drawn"] == 900


def test_one_who_answers_as_i_do_is_drawn_before_one_who_does_not() -> None:
    first: Counter[str] = Counter()
    for seed in range(400):
        pool = [candidate(0), candidate(1, likeness=0.25)]
        first[choose(pool, 1, rng("like", seed), OPEN)[0].reason] += 1
    assert 0.74 < first["drawn"] / 400 < 0.86


def test_without_the_factor_it_plays_no_part() -> None:
    plain = OPEN._replace(factors=("learnability",))
    for seed in range(50):
        pool = [candidate(n, likeness=LEAST) for n in range(4)]
        reasons = Counter(choice.reason for choice in choose(pool, 2, rng("off", seed), plain))
        assert reasons == {"drawn": 2, "not-drawn": 2}
