import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from waggle.core.errors import ModelError
from waggle.policy.checkpoint import save_model
from waggle.policy.load import _check, choose, describe, load, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as transformers lays it out."""
    save_model(load("tiny"), tmp_path / "bee")
    return tmp_path / "bee"


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def one_sentence(error: BaseException) -> bool:
    return "\n" not in str(error) and "Traceback" not in str(error) and len(str(error)) < 500


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(str(folder))
    load("tiny", lora_rank=2)
    assert capfd.readouterr() == ("", "")


def test_weights_are_float32_whatever_the_file_holds(folder: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit(folder / "config.json", dtype="bfloat16")
    policy = load(str(folder))
    assert {tensor.dtype for _, tensor in policy.parameters()} == {torch.float32}
    assert not policy.model.training


def test_dropout_is_off_even_in_training(folder: Path) -> None:
    edit(folder / "config.json", attention_dropout=0.5)
    policy, ids = load(str(folder)), torch.arange(3, 40)[None]
    policy.model.train()
    with torch.no_grad():
        assert torch.equal(policy.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    assert policy.model.config.attention_dropout == 0


def test_paths_are_named_by_their_last_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load(".").name == load(str(folder)).name == "bee"
    assert load("tiny:3").name == "tiny:3"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "there is no model folder '/no/such/folder'; name a folder, a .gguf file, a hub id or"),
        ("./nothing", "there is no model folder './nothing'"),
        ("", "there is no model folder ''"),
        ("a/b/c", "there is no model folder 'a/b/c'"),
        ("/no/such/model.gguf", "cannot read the model /no/such/model.gguf: No such file or directory; check the path"),
        ("tiny:bee", "'tiny:bee' is not a tiny model: after the colon comes a seed, e.g. tiny:7"),
        ("tiny:", "'tiny:' is not a tiny model"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str) -> None:
    for loading in (load, describe):
        with pytest.raises(ModelError, match="^" + re.escape(message)) as caught:
            loading(name)
        assert one_sentence(caught.value)


def test_a_file_is_no_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="there is no model folder"):
        load(str(tmp_path / "model.safetensors"))


def test_an_unknown_hub_id_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    started = time.monotonic()
    with pytest.raises(
        ModelError, match=r"cannot load the model nobody/nothing: .*; check the id and the conn"
    ) as caught:
        load("nobody/nothing")
    assert one_sentence(caught.value)
    assert time.monotonic() - started < 30


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def drop(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def misshape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(7)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def only_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "cannot load the model"),
        (lambda f: (f / "config.json").write_text("{"), "cannot load the model"),
        (lambda f: edit(f / "config.json", model_type="bee"), "cannot load the model"),
        (lambda f: edit(f / "config.json", num_attention_heads="x"), "cannot load the model"),
        (lambda f: edit(f / "config.json", model_type="t5", architectures=["T5"]), "cannot load the model"),
        (lambda f: (f / "tokenizer.json").unlink(), "cannot load the model"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot load the model"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot load the model"),
        (lambda f: truncate(f / "model.safetensors"), "cannot load the model"),
        (only_pickle, "cannot load the model"),
        (drop, "is incomplete: model.layers.1.mlp.up_proj.weight is missing or misshapen; fetch it again"),
        (misshape, "is incomplete: model.norm.weight is missing or misshapen; fetch it again"),
    ],
)
def test_broken_folders_are_one_sentence(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(str(folder))
    assert one_sentence(caught.value), str(caught.value)
    assert "bee" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "bee has layers of kind linear_attention"),
        ({"is_encoder_decoder": True}, "bee has an encoder; Waggle trains decoders"),
    ],
)
def test_models_that_cannot_be_served_are_refused(config: dict[str, object], message: str) -> None:
    model = load("tiny").model
    for key, value in config.items():
        setattr(model.config, key, value)
    with pytest.raises(ModelError, match=message):
        _check(model, "bee")


def test_adapters_keep_their_rank_and_kind(folder: Path, tmp_path: Path) -> None:
    save_model(load(str(folder), lora_rank=4), tmp_path / "adapter")
    adapter = str(tmp_path / "adapter")
    assert load(adapter).lora
    assert load(adapter, lora_rank=4).lora
    assert describe(adapter)[1] == 4
    with pytest.raises(ModelError, match="holds an adapter of rank 4; set lora_rank = 4 or 0 instead of 8"):
        load(adapter, lora_rank=8)
    edit(tmp_path / "adapter" / "adapter_config.json", peft_type="IA3")
    with pytest.raises(ModelError, match="holds a IA3 adapter; Waggle trains LoRA adapters only"):
        load(adapter)
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot load the model"):
        load(adapter)


def test_an_adapter_finds_its_base_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(load("tiny:2", lora_rank=4), tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    assert json.loads(config.read_text())["base_model_name_or_path"] == "tiny:2"
    edit(config, base_model_name_or_path="/elsewhere/v1/smollm2-135m")
    here = tmp_path / "cache" / "v1" / "smollm2-135m"
    save_model(load("tiny:2"), here)
    assert load(str(tmp_path / "adapter"), cache=tmp_path / "cache").base == str(here)
    edit(config, base_model_name_or_path="/elsewhere/bee")
    with pytest.raises(ModelError, match="there is no model folder '/elsewhere/bee'"):
        load(str(tmp_path / "adapter"))


def test_device_and_precision_are_chosen_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    device, precision, reason = choose("auto", "auto")
    assert (device, precision) == ("cpu", "float32")
    assert reason == ("cpu, the best this machine has; computes in float32, so that sampler and trainer agree to 1e-4")
    assert choose("cpu", "bfloat16") == (
        "cpu",
        "bfloat16",
        "cpu, as asked; computes in bfloat16 over float32 weights, as asked",
    )
    with pytest.raises(ModelError, match="device 'cuda' is not available on this machine; use auto or one of: cpu"):
        choose("cuda", "auto")
    with pytest.raises(ModelError, match="precision 'int4' is not known; use auto, float32 or bfloat16"):
        choose("cpu", "int4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose("auto", "auto")[:2] == ("cuda", "bfloat16")
    assert choose("auto", "float32")[:2] == ("cuda", "float32")


def test_resolving_names_without_loading(folder: Path) -> None:
    assert resolve("tiny", seed=3) == "tiny:3"
    assert resolve("tiny:5", seed=3) == "tiny:5"
    assert resolve(str(folder)) == str(folder)
    assert resolve("owner/model") == "owner/model"
