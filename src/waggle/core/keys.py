"""Identity: an Ed25519 key in a file that only its owner can read, and a name people can say.

The public key is the peer id (RFC 8032, 32 bytes). A key file holds the raw 32-byte seed in hex. It is
created atomically with mode 0600 in a folder of mode 0700 and refused when others may read it.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waggle.core.errors import IdentityError
from waggle.core.files import write_atomic

_FIRST = "amber azure bold brisk calm clear coral crisp dawn deep dusky early fern fleet gentle golden".split()
_SECOND = "ant bee crane deer egret finch gecko heron ibis jay koala lark mole newt otter wren".split()


class Key:
    """A signing key. Example: `Key.generate().sign(b"hello")`."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.id: bytes = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Key({peer_name(self.id)})"

    @classmethod
    def generate(cls) -> "Key":
        """A fresh random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Key":
        """The key of a 32-byte seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, file: Path) -> "Key":
        """Read a key file.

        Raises:
            IdentityError: missing, malformed, or readable by others.
        """
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            text = file.read_bytes()
        except FileNotFoundError as error:
            raise IdentityError(f"there is no key at {file}; `waggle key new --file {file}` makes one") from error
        except OSError as error:
            raise IdentityError(
                f"cannot read the key {file}: {error.strerror}; check the path and its owner"
            ) from error
        if mode & 0o077:
            raise IdentityError(f"the key {file} can be read by other users (mode {mode:04o}); run `chmod 600 {file}`")
        try:
            return cls.from_seed(bytes.fromhex(text.decode("ascii").strip()))
        except ValueError as error:  # not text, not hex, or not 32 bytes
            raise IdentityError(f"{file} does not hold a key; restore it from a backup or move it away") from error

    @classmethod
    def load_or_create(cls, file: Path) -> "Key":
        """Read a key file, or make one where there is none."""
        return cls.load(file) if file.exists() else cls.create(file)

    @classmethod
    def create(cls, file: Path) -> "Key":
        """Make a key file; an existing one is never replaced.

        Raises:
            IdentityError: the file exists.
        """
        if file.exists():
            raise IdentityError(f"{file} already holds a key, which is not replaced; choose another file")
        key = cls.generate()
        key.save(file)
        return key

    def save(self, file: Path) -> None:
        """Write the key file, readable by its owner alone; a folder that is made for it likewise."""
        if not file.parent.exists():
            file.parent.mkdir(parents=True)
            os.chmod(file.parent, 0o700)
        write_atomic(file, self._private.private_bytes_raw().hex().encode() + b"\n", mode=0o600)

    def secret(self) -> bytes:
        """The 32-byte seed, for libraries that need the key itself."""
        return self._private.private_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """A 64-byte signature."""
        return self._private.sign(data)


@lru_cache(maxsize=1024)
def _public(peer: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(peer)


def verify(peer: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `peer` signed `data`."""
    try:
        _public(peer).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def peer_name(peer: bytes) -> str:
    """A stable short name. Example: `golden-heron-3f2a`. For people only: the id is the identity."""
    return f"{_FIRST[peer[0] % 16]}-{_SECOND[peer[1] % 16]}-{peer[2:4].hex()}"
