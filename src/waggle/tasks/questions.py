"""What a question is, whatever its wording: its digest decides what is held out.

Seeds do not separate questions: of a small family nearly every question of another seed has been trained on
after 500 draws. So the bucket follows from the question. Where an environment dresses one question in several
wordings, the digest is taken over what is asked, from the item's metadata; arithmetic expressions share one
name space, since several environments ask for the same one. A coarser digest than needed is safe; a finer
one would leak, therefore the families' configuration is not in it.
"""

import hashlib
import re
import unicodedata
from typing import Any, Literal

from waggle.core.codec import digest_bytes
from waggle.core.types import Family
from waggle.tasks.gym import Item

Bucket = Literal["train", "steer", "report", "shots"]

STEER, REPORT, SHOTS = 0.10, 0.10, 0.05
"""Shares of all questions that are reserved: for steering, for the report, for the few-shot examples."""

_ASKED: dict[str, tuple[str, ...]] = {
    "advanced_geometry": ("task_type", "A", "B", "C"),
    "base_conversion": ("source_repr", "source_base", "target_base"),
    "bf": ("bf_program",),
    "circuit_logic": ("expression", "assignments"),
    "color_cube_rotation": ("initial_state", "rotations", "target_side"),
    "count_bits": ("number",),
    "countdown": ("numbers", "target"),
    "fraction_simplification": ("numerator", "denominator"),
    "gcd": ("numbers",),
    "intermediate_integration": ("integrand",),
    "kakurasu": ("row_sums", "col_sums"),
    "lcm": ("numbers",),
    "polynomial_equations": ("polynomial_expr",),
    "polynomial_multiplication": ("polynomial_expr",),
    "quantum_lock": ("buttons", "initial_state", "initial_value", "target_value"),
    "rubiks_cube": ("cube_size", "scramble_moves"),
    "simple_equations": ("equation",),
    "simple_geometry": ("n_sides", "known_angles"),
    "simple_integration": ("integrand",),
    "survo": ("puzzle", "candidate_numbers"),
    "time_intervals": ("task_type", "start_time", "end_time"),
    "tsumego": ("board",),
}
"""Metadata that says what is asked, for environments with several wordings."""

_ARITHMETIC = frozenset({"basic_arithmetic", "chain_sum", "decimal_chain_sum", "products"})
_WHOLE = frozenset({"calendar_arithmetic"})  # fields differ by kind of question; together they say all


def question_digest(family: Family, item: Item) -> bytes:
    """Digest of what is asked, 32 bytes."""
    if family.source == "file":
        return _digest("file:" + family.version, item["question"])
    facts, text = item["metadata"], item["question"]
    if family.env in _ARITHMETIC:
        return _digest("arithmetic", "".join(facts["expression"].split()))
    return _digest(family.env, _asked(family.env, facts, text))


def _asked(env: str, facts: dict[str, Any], text: str) -> Any:
    if env in _ASKED:
        return [facts[key] for key in _ASKED[env]]
    if env in _WHOLE:
        return {key: facts[key] for key in sorted(facts) if not key.startswith("source_") and key != "difficulty"}
    if env == "family_relationships":
        return [text.partition("\n\n")[0], facts["person1"], facts["person2"]]
    if env == "figlet_font":
        return text.partition("\n\n")[2]
    if env == "aiw":  # names and wording vary around the numbers
        return [facts["task_type"], re.findall(r"\d+", text)]
    return text


def _digest(name_space: str, asked: Any) -> bytes:
    return digest_bytes("question", f"{name_space}\0{_normal(str(asked))}".encode())


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def bucket(question: bytes) -> Bucket:
    """The bucket of a question's digest. Example: three in four questions are in `train`."""
    share = int.from_bytes(hashlib.sha256(b"waggle/bucket\0" + question).digest()[:8], "big") / 2.0**64
    if share < STEER:
        return "steer"
    if share < STEER + REPORT:
        return "report"
    return "shots" if share < STEER + REPORT + SHOTS else "train"
