"""Files that travel to peers by their digest: task files now, pictures and sound later.

One request a piece, so that a slow link loses at most a piece and another peer can go on where one stopped. What
arrives is believed by nobody: only bytes whose SHA-256 is the one that was asked for are kept.
"""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from waggle.core.codec import decode, encode
from waggle.core.errors import NetworkError, TaskError
from waggle.core.files import disk_errors, write_atomic
from waggle.core.keys import peer_name
from waggle.core.types import Charter, Count, Digest, Noun
from waggle.net.transport import Transport
from waggle.tasks.files import MAX_BYTES

PROTO = "waggle/blob/1"
PIECE_BYTES = 1 << 20


class Piece(Noun, frozen=True):
    """A request for part of a file. Example: `Piece(b"..32..", 0)`."""

    digest: Digest
    offset: Count


def serve_files(transport: Transport, folder: Path, shared: Collection[bytes]) -> None:
    """Answer requests for the files in `folder` whose digests are shared, and for no others."""

    async def answer(caller: bytes, body: bytes) -> bytes:
        piece = decode(Piece, body)
        if piece.digest not in shared:
            raise NetworkError(f"the file {piece.digest.hex()[:12]} is not shared here")
        with open(folder / f"{piece.digest.hex()}.jsonl", "rb") as file:
            file.seek(piece.offset)
            return file.read(PIECE_BYTES)

    transport.serve(PROTO, answer)


def missing_files(charter: Charter, folder: Path) -> list[bytes]:
    """Digests of the charter's task files that are not in `folder`."""
    versions = [family.version for family in charter.families if family.source == "file"]
    return [bytes.fromhex(v) for v in versions if not (folder / f"{v}.jsonl").exists()]


async def fetch_file(
    transport: Transport, peers: Sequence[bytes], digest: bytes, folder: Path, timeout_s: float
) -> None:
    """Bring a file from the first peer that can give it, going on at the next where one fails.

    Raises:
        TaskError: none of the peers gave the file.
        RunError: it cannot be written.
    """
    why = "no peer is known"
    data = bytearray()
    for peer in peers:
        try:
            await _append_rest(transport, peer, digest, data, timeout_s)
        except NetworkError as error:
            why = str(error)
            continue
        if hashlib.sha256(data).digest() == digest:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / f"{digest.hex()}.jsonl", bytes(data))
            return
        why = f"{peer_name(peer)} gave another file under its name"
        data.clear()
    raise TaskError(f"the swarm's task file {digest.hex()[:12]} could not be fetched: {why}; try again later")


async def _append_rest(transport: Transport, peer: bytes, digest: bytes, data: bytearray, timeout_s: float) -> None:
    """Add what follows the bytes there are, to the end of the file."""
    while True:
        body = encode(Piece(digest, len(data)))
        piece = await transport.request(peer, PROTO, body, timeout_s=timeout_s, max_reply_bytes=PIECE_BYTES)
        if len(data) + len(piece) > MAX_BYTES:
            raise NetworkError(f"{peer_name(peer)} sends more than the {MAX_BYTES} bytes that a task file may have")
        data += piece
        if len(piece) < PIECE_BYTES:
            return
