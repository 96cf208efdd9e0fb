"""Keys: RFC 8032 signatures, files that only their owner reads, and one sentence for every bad file."""

import os
import stat
from pathlib import Path

import pytest

from waggle.core.errors import IdentityError
from waggle.core.keys import Key, peer_name, verify


def test_the_first_rfc_8032_vector() -> None:
    key = Key.from_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.id.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )


def test_what_is_signed_verifies_and_nothing_else() -> None:
    key, other = Key.generate(), Key.generate()
    signature = key.sign(b"hello")
    assert verify(key.id, b"hello", signature)
    assert not verify(key.id, b"hullo", signature)
    assert not verify(other.id, b"hello", signature)
    assert not verify(key.id, b"hello", signature[:-1])
    assert not verify(key.id, b"hello", b"")
    assert not verify(b"short", b"hello", signature)
    assert not verify(b"\xff" * 32, b"hello", signature)


def test_a_key_file_is_private_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "waggle" / "key"
    key = Key.create(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert Key.load(file).id == Key.load_or_create(file).id == key.id
    assert [path.name for path in file.parent.iterdir()] == ["key"]


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    Key.create(tmp_path / "key")
    with pytest.raises(IdentityError, match="already holds a key"):
        Key.create(tmp_path / "key")


def test_load_or_create_makes_one(tmp_path: Path) -> None:
    assert Key.load_or_create(tmp_path / "key").id == Key.load(tmp_path / "key").id


def _write(file: Path, data: bytes, mode: int = 0o600) -> None:
    file.write_bytes(data)
    os.chmod(file, mode)


@pytest.mark.parametrize(
    ("data", "mode", "says"),
    [
        (b"ab" * 32, 0o644, "can be read by other users .mode 0644.; run `chmod 600"),
        (b"ab" * 32, 0o620, "mode 0620"),
        (b"", 0o600, "does not hold a key"),
        (b"ab" * 31, 0o600, "does not hold a key"),
        (b"ab" * 33, 0o600, "does not hold a key"),
        (b"xy" * 32, 0o600, "does not hold a key"),
        (b"\xff\xfe" * 32, 0o600, "does not hold a key"),
    ],
)
def test_bad_key_files_are_said(tmp_path: Path, data: bytes, mode: int, says: str) -> None:
    _write(tmp_path / "key", data, mode)
    with pytest.raises(IdentityError, match=says):
        Key.load(tmp_path / "key")


def test_missing_and_impossible_paths_are_said(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"no key at .*waggle key new"):
        Key.load(tmp_path / "none")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    with pytest.raises(IdentityError, match="cannot read the key"):
        Key.load(folder)


def test_names_are_short_stable_and_different() -> None:
    names = {peer_name(Key.from_seed(bytes([number]) * 32).id) for number in range(100)}
    assert len(names) == 100
    assert peer_name(bytes(32)) == "amber-ant-0000"
    assert repr(Key.from_seed(bytes(32))) == f"Key({peer_name(Key.from_seed(bytes(32)).id)})"
