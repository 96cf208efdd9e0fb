"""Writes vectors.json from the program: `python -m conformance.generate`. What it holds: see README.md.

Everything in it is the same on every machine: keys, times and texts are fixed, and compressed frames hold their content
as it is (zstd allows that), since another version of the compressor would write other bytes.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.admission import admission, announcements
from conformance.draws import draws, orders, questions, seeds
from conformance.experience import batches, rounds, trees
from conformance.forms import blobs, charter, frames, handshakes, keys, nouns, records, requests, tickets
from conformance.world import ME, NOW_MS, TOKENIZER, World

FILE = Path(__file__).parent / "vectors.json"

SECTIONS: dict[str, Callable[[World], Any]] = {
    **{"keys": keys, "nouns": nouns, "charter": charter, "tickets": tickets, "records": records, "frames": frames},
    **{"handshakes": handshakes, "seeds": seeds, "draws": draws, "questions": questions, "orders": orders},
    **{"trees": trees, "round": rounds, "batches": batches, "requests": requests, "blobs": blobs},
    **{"admission": admission, "announcements": announcements},
}


def generate() -> str:
    """The text of vectors.json."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        facts = {"protocol": 1, "now_ms": NOW_MS, "me": ME.id.hex(), "tokenizer": TOKENIZER.hex()}
        made = {**facts, **{name: section(world) for name, section in SECTIONS.items()}}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FILE.write_text(generate(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
