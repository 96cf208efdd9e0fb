"""The limits on docs/protocol.md are those of the program, all of them."""

import importlib
import re
from dataclasses import fields

from tests.test_protocol import PAGE, rows_of
from waggle.core.config import ShareConfig
from waggle.core.types import Admission
from waggle.net import terms
from waggle.swarm import admission

SOURCES: dict[str, str] = {
    "core.codec": "FORMAT=VERSION MAX_NOUN_BYTES=MAX_BYTES",
    "swarm.charter": "CHARTER_PROTOCOL=PROTOCOL MAX_TICKET_CHARS CHECK_BYTES=_CHECK_BYTES",
    "net.transport": "MAX_BODY_BYTES MAX_ADDRESS_CHARS MAX_REPLY_BYTES",
    "net.book": "RECORD_LIFE_S=LIFE_S RECORD_SKEW_S=SKEW_S MAX_RECORDS",
    "net.wire": "MAX_FRAME_BYTES MAX_REQUEST_BYTES",
    "net.iroh": "HANDSHAKE_S MAX_KNOCKING REQUEST_S ANSWER_S",
    "net.iroh_link": "LENGTH_BYTES REPLY_HEAD_BYTES=REPLY_HEAD MAX_STREAMS MAX_ASKED BROKEN_PER_S BROKEN_AT_ONCE",
    "net.guard": "KNOCKS_PER_S KNOCKS_AT_ONCE ALL_KNOCKS_PER_S ALL_KNOCKS_AT_ONCE RUDE_KNOCKS OUT_KNOCKS MOST_KNOCKS "
    "REQUESTS_PER_S REQUESTS_AT_ONCE MAX_DEBT_S OUT_S MAX_OUT_S",
    "net.frames": "OVERLAY=PROTOCOL MAX_MESSAGE_BYTES MAX_NAMES=MAX_TOLD MAX_TOLD=TOLD",
    "net.overlay": "MAX_STRANGERS EVICT_S PING_S SILENT_S GOSSIP_S",
    "net.requests": "DIAL_S",
    "net.neighbour": "NEW_S FRAMES_PER_S FRAMES_AT_ONCE TELLINGS_PER_S TELLINGS_AT_ONCE MAX_WAITING MAX_WAITING_BYTES",
    "net.spread": "CHARGED_BYTES CHARGED_LATE_BYTES CHARGED_NAMES CHARGED_JUNK "
    "EAGER_BYTES AT_ONCE WINDOW WANT_S LATE_S MAX_TRIES=_MAX_TRIES KEPT_S KEPT_BYTES REMEMBERED",
    "net.reach": "DIAL_BACK_S DIAL_BACKS_PER_S=PER_S DIAL_BACKS_AT_ONCE=AT_ONCE",
    "node.exchange": "MAX_IDS MAX_GREETING_BYTES MAX_BATCH_BYTES MAX_ANNOUNCEMENT_BYTES MAX_ANNOUNCEMENTS=MAX_TOLD",
    "node.arrival": "PULL_BYTES",
    "swarm.admission": "MAX_LISTED_BYTES=ANNOUNCEMENT_MAX_BYTES SEAL_BYTES=SEAL_MAX_BYTES MIN_GROUP "
    "LEAST_LOGPROB=MIN_LOGPROB MIN_EPOCH_S",
    "tasks.gym": "EPOCH",
    "tasks.stream": "RUN",
    "swarm.seen": "MIN_DISTINCT MIN_CHARS REMEMBERED_GROUPS=CAPACITY",
    "core.blob": "CHUNK_BYTES MAX_BLOB_BYTES MAX_MANIFEST_BYTES",
    "net.blobs": "PIECE_S MAX_ASK_BYTES=_MAX_ASK_BYTES",
    "tasks.files": "MAX_FILE_BYTES=MAX_BYTES MAX_LINE_BYTES MAX_LINES MIN_FILE_QUESTIONS=MIN_QUESTIONS",
}
"""Which module says so, by the page's name and the program's where that is another."""


def test_limits_are_those_of_the_program() -> None:
    rows = {name.strip("`"): float(value) for name, value, *_ in rows_of("16.")}
    share, mine, (least, most) = ShareConfig(), terms.Terms(), admission.TEMPERATURES
    groups = next(field.default for field in fields(admission.View) if field.name == "max_groups_per_round")
    limits = {"FANOUT": share.fanout, "KEPT_ROUNDS": share.max_lag, "TIMEOUT_S": share.timeout_s, "MAX_GROUPS": groups}
    limits |= {"LEAST": mine.least, "MOST": mine.most, "LEAST_TEMPERATURE": least, "MOST_TEMPERATURE": most}
    for source, names in SOURCES.items():
        module = importlib.import_module(f"waggle.{source}")
        limits |= {page: getattr(module, name or page) for page, _, name in (n.partition("=") for n in names.split())}
    assert rows == limits
    assert {name for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", PAGE) if len(name) > 2} <= {*rows}
    rules, said = Admission(), re.search(r"\n\nUnless a founder says otherwise, (.*?)\n\n", PAGE, re.S)
    assert said
    told = {name: float(value) for name, value in re.findall(r"`(\w+)`\s+([\d.]+\d)", said[1])}
    assert told == {**{name: float(getattr(rules, name)) for name in rules.__struct_fields__}, "common_share": 0.25}
