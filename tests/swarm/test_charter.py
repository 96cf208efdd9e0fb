"""Charters and tickets: a swarm fits into one word, and every damage to it is told in one sentence."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import ALICE, BOB, CHARTER, EVE, SUMS, WORDS, replace
from waggle.core.codec import encode, pack
from waggle.core.errors import ConfigError
from waggle.core.sealing import charter_is_signed, found
from waggle.core.types import Charter, Family, Ticket
from waggle.swarm import charter as module
from waggle.swarm.charter import PROTOCOL, is_member, new_charter, read_ticket, ticket_text

TICKET = Ticket(CHARTER, ("ab" * 32 + "@127.0.0.1:4242",))
TEXT = ticket_text(TICKET)


def text_of(charter: Charter) -> str:
    return ticket_text(Ticket(charter))


def raw(data: bytes) -> str:
    """A ticket with a good checksum over any frame."""
    return "waggle1:" + base64.urlsafe_b64encode(data + module._checksum(data)).decode().rstrip("=")


def test_a_founder_signs() -> None:
    assert CHARTER.founder == ALICE.id
    assert CHARTER.protocol == PROTOCOL
    assert charter_is_signed(CHARTER)


def test_a_ticket_survives_its_text() -> None:
    assert read_ticket(TEXT) == TICKET
    assert TEXT.startswith("waggle1:")
    assert len(TEXT) < 700


@pytest.mark.parametrize("form", ["  {}\n", "\t{}", "{}\r\n\r\n"])
def test_white_space_of_copying_is_ignored(form: str) -> None:
    assert read_ticket(form.format(TEXT)) == TICKET
    wrapped = "\n> ".join(TEXT[start : start + 40] for start in range(0, len(TEXT), 40)).replace("> ", "  ")
    assert read_ticket(wrapped) == TICKET


def test_an_open_swarm_takes_anyone_and_a_closed_one_its_members() -> None:
    closed = new_charter(ALICE, "bees", [SUMS], created_ms=5, members=[BOB.id])
    assert is_member(CHARTER, EVE.id)
    assert [is_member(closed, key.id) for key in (ALICE, BOB, EVE)] == [True, True, False]
    assert new_charter(ALICE, "bees", [SUMS], created_ms=5, members=[BOB.id, ALICE.id, BOB.id]) == closed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": " "}, "needs a name"),
        ({"name": "bees\x1b[2J"}, "printable"),
        ({"name": "b" * 201}, "cannot be founded: .*length <= 200"),
        ({"families": []}, "cannot be founded: .*length >= 1"),
        ({"families": [SUMS, replace(SUMS, config="{}")]}, "two families of the swarm are called chain_sum"),
        ({"common_share": 1.5}, "cannot be founded: .*<= 1"),
        ({"common_share": float("nan")}, "cannot be founded"),
        ({"members": [b"short"]}, "cannot be founded: .*length >= 32"),
    ],
)
def test_what_cannot_be_founded_is_said(changes: dict[str, object], says: str) -> None:
    fields = {"name": "bees", "families": [SUMS], "created_ms": 5} | changes
    with pytest.raises(ConfigError, match=says):
        new_charter(ALICE, **fields)  # type: ignore[arg-type]


def test_two_configurations_of_one_environment_have_names() -> None:
    hard = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 3, "", 8, "hard-sums")
    assert [f.label for f in new_charter(ALICE, "bees", [SUMS, hard], created_ms=5).families] == [
        "chain_sum",
        "hard-sums",
    ]


BAD = [
    ("nothing", "", "is not a ticket; one begins with waggle1:"),
    ("a sentence", "please let me in to the swarm", "is not a ticket"),
    ("another version", TEXT.replace("waggle1", "waggle2"), "is not a ticket"),
    ("prefix alone", "waggle1:", "damaged"),
    ("four bytes", "waggle1:AAAAAA", "damaged"),
    ("truncated", TEXT[:-7], "damaged"),
    ("a letter changed", TEXT[:50] + ("A" if TEXT[50] != "A" else "B") + TEXT[51:], "damaged"),
    ("two letters swapped", TEXT[:60] + TEXT[61] + TEXT[60] + TEXT[62:], "damaged"),
    ("no base64", TEXT[:50] + "!" + TEXT[51:], "damaged"),
    ("beyond ascii", TEXT[:50] + "é" + TEXT[51:], "damaged"),
    ("endless", "waggle1:" + "A" * (module.MAX_TICKET_CHARS + 1), "characters; at most"),
    ("no frame", raw(b"hello"), "cannot be read: a compressed frame"),
    ("a bomb", raw(pack(bytes(2 << 20))), "declares 2097152 bytes"),
    ("no ticket inside", raw(pack(encode(CHARTER))), "cannot be read: Ticket is malformed"),
    (
        "a later protocol",
        text_of(found(ALICE, replace(CHARTER, protocol=2))),
        "speaks protocol 2, not 1; update waggle",
    ),
    ("changed", text_of(replace(CHARTER, name="wasps")), "'wasps' is not signed by its founder"),
    ("another founder", text_of(replace(CHARTER, founder=BOB.id)), "not signed by its founder"),
    ("control characters", text_of(found(ALICE, replace(CHARTER, name="\x1b[2Jx"))), "control characters"),
    (
        "in a family",
        text_of(found(ALICE, replace(CHARTER, families=(replace(WORDS, name="\n"),)))),
        "control characters",
    ),
]


@pytest.mark.parametrize(("text", "says"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_tickets_are_said_in_one_sentence(text: str, says: str) -> None:
    assert text != TEXT
    with pytest.raises(ConfigError, match=says) as caught:
        read_ticket(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=60), st.booleans())
def test_any_text_is_a_ticket_or_an_error(text: str, prefixed: bool) -> None:
    with pytest.raises(ConfigError):
        read_ticket("waggle1:" * prefixed + text)


@given(st.data())
def test_any_wrong_letter_is_noticed(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_"))
    changed = TEXT[:at] + letter + TEXT[at + 1 :]
    if changed != TEXT:
        with pytest.raises(ConfigError):
            read_ticket(changed)


def test_a_ticket_may_be_good_until_a_day() -> None:
    text = ticket_text(Ticket(CHARTER, expires_ms=1_700_000_000_000))
    assert read_ticket(text, 1_699_999_999_999).expires_ms == 1_700_000_000_000
    assert read_ticket(text).charter == CHARTER  # without a time it is not asked
    with pytest.raises(ConfigError, match=r"this ticket of .* was good until 2023-11-14; ask for a new one"):
        read_ticket(text, 1_700_000_000_000)
