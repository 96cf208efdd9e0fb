"""From a name to a policy: bundled, tiny, a folder, an adapter folder, a GGUF file or a hub id.

What may differ between machines is decided here, once, and said in words: device, precision, attention. Weights
are float32 and mapped from safetensors, so that loading does not hold them twice. Nothing is unpickled and no code
from a model's folder is run.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from waggle.core.errors import ModelError
from waggle.policy import adapter, bundled, linear, machine, tiny
from waggle.policy.policy import Policy
from waggle.policy.quiet import quiet

_LAYERS = {"full_attention", "sliding_attention"}


def load(
    name: str,
    *,
    lora_rank: int = 0,
    device: str = "auto",
    precision: str = "auto",
    cache: Path | None = None,
    seed: int = 0,
) -> Policy:
    """Load a policy.

    Args:
        name: `smollm2-135m`, `tiny` or `tiny-b` (`tiny:7` for other weights), a folder of transformers or peft,
            a .gguf file, or a hub id.
        lora_rank: rank of a fresh adapter to train; 0 trains all weights, or the adapter that the folder holds.
        device: `auto`, `cpu`, `cuda` or `mps`.
        precision: `auto`, `float32` or `bfloat16`.
        cache: where converted models are kept, by default `~/.cache/waggle`.
        seed: of a tiny model's weights and of a fresh adapter.

    Raises:
        ModelError: in one sentence, whatever is wrong with the model, its files or the wish.
    """
    chosen, number, choice = choose(device, precision)
    source = resolve(name, cache, seed)
    with quiet():
        if _is_adapter(source):
            model, wrapper, tokenizer, base = _load_adapter(Path(source), lora_rank, cache)
        else:
            model, tokenizer, base, wrapper = *_load_base(source), source, None
            if lora_rank:
                wrapper = adapter.attach(model, lora_rank, seed, name)
                wrapper.peft_config["default"].base_model_name_or_path = base
    _check(model, name)
    model.to(chosen).eval()
    if number == "float32":
        linear.hasten(model)
    machine.trim()
    return Policy(model, tokenizer, _label(name), torch.device(chosen), number, choice, base, wrapper)


def resolve(name: str, cache: Path | None = None, seed: int = 0) -> str:
    """What transformers is to load for this name: a folder, a hub id, or a tiny model with its seed.

    Raises:
        ModelError: where there is nothing of that name on this machine and it is no hub id.
    """
    kept = cache or bundled.cache_folder()
    path = Path(name).expanduser()
    if name == bundled.NAME:
        with quiet():
            return str(bundled.bundled(kept))
    if name.partition(":")[0] in tiny.NAMES:
        return _tiny_source(name, seed)
    if path.suffix == ".gguf":
        with quiet():
            return str(bundled.gguf(path, kept))
    if name and path.is_dir():
        return str(path.resolve())
    if path.exists() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or not name:
        raise ModelError(f"there is no model folder {name!r}; name a folder, a .gguf file, a hub id or {bundled.NAME}")
    return name


def _tiny_source(name: str, seed: int) -> str:
    kind, colon, number = name.partition(":")
    if colon and not (number.isascii() and number.isdecimal()):
        raise ModelError(f"{name!r} is not a tiny model: after the colon comes a seed, e.g. {kind}:7")
    return f"{kind}:{number or seed}"


def _label(name: str) -> str:
    """What the model is called in records: a built-in name or hub id as it is, of a path only the last part."""
    path = Path(name).expanduser()
    return path.resolve().name if path.exists() else name


def choose(device: str, precision: str) -> tuple[str, Literal["float32", "bfloat16"], str]:
    """Device, number format of the computation, and the reason in words.

    Raises:
        ModelError: for a device that is not there or a name that is not known.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device != "auto" and not available.get(device, False):
        usable = ", ".join(name for name, there in available.items() if there)
        raise ModelError(f"device {device!r} is not available on this machine; use auto or one of: {usable}")
    if precision not in ("auto", "float32", "bfloat16"):
        raise ModelError(f"precision {precision!r} is not known; use auto, float32 or bfloat16")
    chosen = device if device != "auto" else next(name for name, there in available.items() if there)
    where = f"{chosen}, {'as asked' if device != 'auto' else 'the best this machine has'}"
    if precision == "bfloat16" or (precision == "auto" and chosen == "cuda"):
        why = "as asked" if precision != "auto" else "fast there"
        return chosen, "bfloat16", f"{where}; computes in bfloat16 over float32 weights, {why}"
    why = "as asked" if precision != "auto" else "so that sampler and trainer agree to 1e-4"
    return chosen, "float32", f"{where}; computes in float32, {why}"


def _load_base(source: str) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, a hub id or a tiny model."""
    kind, _, seed = source.partition(":")
    if kind in tiny.NAMES:
        return tiny.build(kind, int(seed))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _explained(source):
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    lacking = sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])])
    if lacking:
        raise ModelError(f"the model {source} is incomplete: {lacking[0]} is missing or misshapen; fetch it again")
    return model, tokenizer


def describe(name: str, cache: Path | None = None) -> tuple[Any, int]:
    """The configuration of a model that is not loaded, and the rank of the adapter that it comes with or 0.

    Raises:
        ModelError: where there is no such model or its configuration cannot be read.
    """
    from transformers import AutoConfig

    source, rank = resolve(name, cache), 0
    if _is_adapter(source):
        rank, on = _adapter_of(Path(source))
        source = resolve(on, cache)
    kind = source.partition(":")[0]
    if kind in tiny.NAMES:
        return tiny.configuration(kind), rank
    if Path(source).is_dir() and not any(Path(source).glob("*.safetensors")):
        raise ModelError(f"cannot load the model {source}: the folder holds no *.safetensors; copy its weights there")
    with _explained(source), quiet():
        return AutoConfig.from_pretrained(source).get_text_config(), rank


def _is_adapter(source: str) -> bool:
    return (Path(source) / "adapter_config.json").is_file()


def _adapter_of(folder: Path) -> tuple[int, str]:
    """Rank of the adapter in a folder, and the name of its base. The bundled model may lie elsewhere here."""
    with _explained(str(folder)):
        described = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        kind, rank, on = described["peft_type"], int(described["r"]), str(described["base_model_name_or_path"])
    if kind != "LORA":
        raise ModelError(f"{folder} holds a {kind} adapter; Waggle trains LoRA adapters only, name another folder")
    return rank, Path(on).name if not Path(on).exists() and Path(on).name == bundled.NAME else on


def _load_adapter(folder: Path, lora_rank: int, cache: Path | None) -> tuple[Any, Any, Any, str]:
    from peft import PeftModel

    rank, on = _adapter_of(folder)
    if lora_rank not in (0, rank):
        raise ModelError(
            f"{folder} holds an adapter of rank {rank}; set lora_rank = {rank} or 0 instead of {lora_rank}"
        )
    base = resolve(on, cache)
    model, tokenizer = _load_base(base)
    with _explained(str(folder)):
        wrapper = PeftModel.from_pretrained(model, folder, is_trainable=True)
    return model, wrapper, tokenizer, base


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turn whatever transformers raises on a model it cannot load into one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
    from safetensors import SafetensorError

    ordinary = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError)
    try:
        yield
    except (*ordinary, SafetensorError, HfHubHTTPError, StrictDataclassError) as error:
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
        if Path(source).is_dir():
            advice = "check that its config.json, tokenizer.json and safetensors files are there and whole"
        else:
            advice = "check the id and the connection, or name a local folder"
        raise ModelError(f"cannot load the model {source}: {reason}; {advice}") from error


def _check(model: Any, name: str) -> None:
    """Refuse what the sampler and the packed trainer cannot serve, and turn dropout off.

    Raises:
        ModelError: for encoder-decoder models and for layers without attention over the whole past.
    """
    config = model.config
    other = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if getattr(config, "is_encoder_decoder", False) or other:
        what = f"layers of kind {sorted(other)[0]}" if other else "an encoder"
        raise ModelError(f"{name} has {what}; Waggle trains decoders with attention in every layer, name another model")
    for key, value in vars(config).items():
        if key.endswith(("dropout", "_pdrop", "dropout_rate", "dropout_prob")) and isinstance(value, int | float):
            setattr(config, key, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
            module.attention_dropout = 0.0
