"""Configuration: one TOML file, overridden by `--set section.field=value`, into strict frozen models.

Every field carries its own documentation, which `waggle config` and docs/configuration.md print. An unknown
field, a wrong type or a setting without effect is an error; nothing is read from the environment.
"""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from waggle.core.errors import ConfigError
from waggle.core.own import is_own

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
LOSSES = ("clip", "cispo", "soft_gate", "reinforce")
SAMPLERS = ("uniform", "top_reward", "weighted")


_HOURS = r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$"


def _named(kind: str, names: Sequence[str]) -> Callable[[str], str]:
    """A check that a value is one of these names, or names a function of the user's."""

    def check(value: str) -> str:
        if value not in names and not is_own(value):
            raise ValueError(f"there is no {kind} {value!r}; use {', '.join(names)}, or FILE.py:function of your own")
        return value

    return check


class Section(BaseModel):
    """Base of the sections: unknown fields and values of another type are refused, values cannot change."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


PERSON = "person"
"""The name of the model that is none, see `waggle answer`."""


class ModelConfig(Section):
    """The language model of a node."""

    name: str = "smollm2-135m"
    """`smollm2-135m` (bundled), `tiny` (random weights, to try things), a local folder, a .gguf file or a hub id."""
    lora_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """Rank of a LoRA adapter to train instead of all weights; 0 trains all weights."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the model runs; `auto` takes CUDA, then MPS, then CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the computation; weights and log-probabilities stay in float32."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of all nodes of a command together; 0 uses every core."""
    memory_gb: Annotated[float, Field(ge=0)] = 0.0
    """Memory that the nodes of a command may plan for together, in GB; 0 means what the machine has free."""
    endpoint: str = ""
    """URL of an OpenAI-compatible server, ending in /v1, whose model `name` answers: the node gives and learns not."""
    endpoint_key: str = ""
    """A file that holds the server's API key, where it wants one."""

    @property
    def gives(self) -> bool:
        """Whether the node only gives: a server or a person answers, and nothing is learned."""
        return bool(self.endpoint) or self.name == PERSON


class TasksConfig(Section):
    """What the node learns from."""

    set: str = "starter"
    """The named set of families that a swarm is founded with, see `waggle tasks list`; `none` for own questions."""
    families: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Families of the charter that this node works on; empty means all. A node chooses families, never questions."""
    file: str = ""
    """A JSONL file of own questions to add when a swarm is founded."""
    grader: str = "exact"
    """How answers to the file's questions are graded: exact, number, choice, regex, or FILE.py:function."""
    share_file: bool = False
    """Whether the task file may be sent to peers. Without it, its questions are never shared."""


class RoundConfig(Section):
    """How much is done between two optimiser steps."""

    local: Annotated[int, Field(ge=1, le=256)] = 6
    """I: groups of own answers per round."""
    foreign: Annotated[int, Field(ge=0, le=256)] = 6
    """J: groups of peers' answers per round, taken from the pool; 0 is plain training alone."""
    group_size: Annotated[int, Field(ge=2, le=256)] = 16
    """Completions per question."""
    refills: Annotated[int, Field(ge=0, le=16)] = 1
    """How often a round may draw new questions in place of groups without a learning signal."""
    temperature: Annotated[float, Field(ge=0.05, le=4)] = 1.0
    """Sampling temperature in training, applied on both sides of the ratio. Peers refuse what is beyond its range."""
    max_tokens: Annotated[int, Field(ge=0, le=65536)] = 0
    """Cap on new tokens per completion; 0 leaves it to each family."""


class LearnConfig(Section):
    """The policy gradient."""

    loss: Annotated[str, AfterValidator(_named("loss", LOSSES))] = "reinforce"
    """Named loss, see docs/algorithms.md: clip, cispo, soft_gate, reinforce, or FILE.py:function of your own."""
    learning_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Step size of AdamW; 0 takes the vetted default: 3e-5 for all weights, 2e-4 for LoRA."""
    warmup: Annotated[int, Field(ge=0)] = 2
    """Steps over which the step size rises to its value."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip of the ratio."""
    clip_high: Annotated[float, Field(gt=0, le=10)] = 0.28
    """Upper clip of the ratio."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    baseline: Literal["group", "own"] = "group"
    """What a foreign group's rewards are measured against: its own mean, or my own running rate at such questions."""
    merge: bool = False
    """Whether groups that answer one question are measured against the mean of all of them."""
    subset: Annotated[int, Field(ge=0, le=256)] = 0
    """Most answers of a group that are trained on, those whose rewards differ most; 0 trains on all."""
    window: Annotated[float, Field(ge=0, le=30)] = 0.0
    """Foreign answers with eight tokens less likely to me than this, in nats a token, teach nothing; 0: no limit."""
    token_budget: Annotated[int, Field(ge=64, le=1 << 20)] = 1024
    """Tokens per packed row (one forward and backward pass); smaller needs less memory."""


Factor = Literal["learnability", "freshness", "novelty", "trust", "likeness", "brevity", "balance"]
FACTORS: tuple[Factor, ...] = get_args(Factor)


class ShareConfig(Section):
    """What is taken from and given to peers."""

    sampler: Annotated[str, AfterValidator(_named("sampler", SAMPLERS))] = "uniform"
    """How foreign groups are chosen: uniform, top_reward, weighted (by what they teach), or FILE.py:function."""
    factors: Annotated[tuple[Factor, ...], Field(strict=False)] = FACTORS
    """Factors of a group's weight with share.sampler = "weighted"."""
    even: Share = 0.1
    """Share of the weighted draws that look at no weight."""
    adaptive: bool = False
    """Whether fewer foreign groups are taken, or none for a while and from the best weights, when held-out falls."""
    quota: Share = 0.5
    """Most of a step's foreign groups that come from one peer, with share.sampler = "weighted"."""
    replay: Annotated[int, Field(ge=1, le=64)] = 1
    """How often a foreign group may be trained on while I am hardly ever right at such questions."""
    publish: Literal["signal", "all", "none"] = "signal"
    """Which own groups are offered: those with a learning signal, all, or none."""
    logprobs: bool = True
    """Whether token ids and log-probabilities travel with the text, for peers with the same tokenizer."""
    fanout: Annotated[int, Field(ge=1, le=64)] = 8
    """Peers that an announcement is pushed to."""
    max_lag: Annotated[int, Field(ge=1)] = 64
    """Rounds of mine after which an unused foreign group is forgotten."""
    pool_groups: Annotated[int, Field(ge=1)] = 512
    """Most foreign groups kept."""
    pool_mb: Annotated[float, Field(gt=0)] = 32.0
    """Most bytes of foreign groups kept, in MB."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Longest wait for a peer's answer."""
    patience_s: Annotated[float, Field(ge=0, le=600)] = 1.0
    """How long a round waits for answers of peers; what comes later serves the next round."""
    trust: bool = True
    """Whether authors whose experience proved bad are asked less often, or not at all for a while."""
    tit_for_tat: bool = True
    """Whether a peer that announces nothing in most of its rounds is given only a part of what it asks for."""
    floor: Share = 0.25
    """The least part that it is given; at least one group a round of mine."""


class NetConfig(Section):
    """How the node is reached, and what it may use of the line."""

    listen: Annotated[tuple[str, ...], Field(strict=False, max_length=2)] = ()
    """Where to listen, one address with a port a family; empty means everywhere, on a port of the key's own."""
    announce: Annotated[tuple[str, ...], Field(strict=False, max_length=4)] = ()
    """Addresses with ports to tell peers first, where a router or a container hides the node's own."""
    relays: Annotated[tuple[str, ...], Field(strict=False, max_length=8)] = ()
    """URLs of relays that lead to nodes which cannot be reached directly; none by default."""
    upload_kb_s: Annotated[float, Field(ge=0)] = 0.0
    """Most that the node sends, in kB a second (1,000 bytes); 0 means no such limit."""
    day_mb: Annotated[float, Field(ge=0)] = 0.0
    """Bytes of both ways after which the node is offline until midnight UTC and trains alone, in MB; 0: no limit."""


class EvalConfig(Section):
    """Own answers to held-out questions."""

    every: Annotated[int, Field(ge=0)] = 5
    """Rounds between evaluations on the steering questions, which choose the best weights; 0 turns them off."""
    forget: Annotated[float, Field(ge=0)] = 0.1
    """How much more of its bits plain text may cost weights that are kept as the best, in parts; 0: no limit."""
    steer: Annotated[int, Field(ge=1)] = 60
    """Questions per steering evaluation."""
    report: Annotated[int, Field(ge=1)] = 300
    """Questions of the report, asked before the first and after the last round; never used to steer."""
    temperature: Annotated[float, Field(ge=0, le=4)] = 1.0
    """Temperature of the answers; 0 is greedy."""


class RunConfig(Section):
    """When it ends and what is kept."""

    seed: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Seed of everything random that is not tied to a key."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds after which a node ends; 0 means no such limit."""
    minutes: Annotated[float, Field(ge=0)] = 0.0
    """Minutes of training after which a run ends; 0 means no such limit."""
    hours: Annotated[str, Field(pattern=_HOURS)] = ""
    """When the node may train, local time, e.g. 22:00-07:00; empty means always. It stays online in between."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 5.0
    """Minutes between full checkpoints; what is between them is replayed from the journal."""
    keep_checkpoints: Positive = 1
    """Full checkpoints kept."""
    events_mb: Annotated[float, Field(gt=0)] = 32.0
    """Size at which events.jsonl and metrics.jsonl are rotated; one older file of each is kept."""
    experience_mb: Annotated[float, Field(gt=0)] = 64.0
    """Most bytes of own published experience kept on disk, in MB."""
    record_mb: Annotated[float, Field(ge=0)] = 64.0
    """Most bytes kept of what came from peers, from the first round on, for `waggle replay`, in MB; 0 keeps none."""


class Config(Section):
    """The whole configuration of a node."""

    model: ModelConfig = ModelConfig()
    tasks: TasksConfig = TasksConfig()
    round: RoundConfig = RoundConfig()
    learn: LearnConfig = LearnConfig()
    share: ShareConfig = ShareConfig()
    net: NetConfig = NetConfig()
    eval: EvalConfig = EvalConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _settings_have_effect(self) -> "Config":
        if self.model.endpoint_key and not self.model.endpoint:
            raise ValueError("model.endpoint_key has no effect without model.endpoint; set both or neither")
        if self.model.endpoint and not self.model.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"model.endpoint = {self.model.endpoint!r} is no URL; one begins with http:// or https://")
        if self.model.endpoint:
            for field in ("lora_rank", "threads", "memory_gb"):
                if getattr(self.model, field):
                    raise ValueError(f"model.{field} has no effect with model.endpoint; remove one of them")
            if self.learn != LearnConfig():
                raise ValueError("[learn] has no effect with model.endpoint; remove one of them")
        first, _, last = self.run.hours.partition("-")
        if first and first == last:
            raise ValueError(f"run.hours = {self.run.hours!r} is no time at all; leave it empty for always")
        if self.tasks.share_file and not self.tasks.file:
            raise ValueError("tasks.share_file has no effect without tasks.file; set both or neither")
        if self.tasks.grader != "exact" and not self.tasks.file:
            raise ValueError("tasks.grader has no effect without tasks.file; set both or neither")
        if self.round.foreign == 0 and self.share.sampler != "uniform":
            raise ValueError("share.sampler has no effect with round.foreign = 0; remove one of them")
        share, plain = self.share, ShareConfig()
        for field in ("factors", "even", "quota"):
            if share.sampler != "weighted" and getattr(share, field) != getattr(plain, field):
                raise ValueError(f"share.{field} has no effect with share.sampler = {share.sampler!r}; remove it")
        if not self.eval.every and self.eval.forget != EvalConfig().forget:
            raise ValueError("eval.forget has no effect with eval.every = 0; remove one of them")
        if self.share.adaptive and not (self.round.foreign and self.eval.every):
            raise ValueError("share.adaptive has no effect with round.foreign = 0 or eval.every = 0; remove it")
        if self.round.foreign == 0 and not self.share.trust:
            raise ValueError("share.trust has no effect with round.foreign = 0; remove one of them")
        if not self.share.tit_for_tat and self.share.floor != 0.25:
            raise ValueError("share.floor has no effect without share.tit_for_tat; remove one of them")
        learn = self.learn
        for field in ("baseline", "window"):
            if self.round.foreign == 0 and getattr(learn, field) != getattr(LearnConfig(), field):
                raise ValueError(f"learn.{field} has no effect with round.foreign = 0; remove one of them")
        if learn.loss in ("reinforce", "soft_gate") and (learn.clip_low, learn.clip_high) != (0.2, 0.28):
            raise ValueError(
                f"learn.clip_low and clip_high have no effect with learn.loss = {learn.loss!r}; remove them"
            )
        if learn.loss == "cispo" and learn.clip_low != 0.2:
            raise ValueError("learn.clip_low has no effect with learn.loss = 'cispo'; remove it")
        return self


def load(file: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration: defaults, then the file, then `section.field=value` overrides.

    Raises:
        ConfigError: an unreadable file, unknown field or bad value, in one sentence.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from error
    for override in overrides:
        _apply(values, override)
    return _validated(values, file)


def override_run(config: Config, overrides: Sequence[str]) -> Config:
    """Change settings of [run] and [net], the only ones that an existing run can have changed.

    Raises:
        ConfigError: another section, an unknown field or a bad value.
    """
    values = config.model_dump()
    for override in overrides:
        if not override.strip().startswith(("run.", "net.")) or override.strip().startswith("run.seed"):
            raise ConfigError(
                f"--set {override!r} cannot change an existing run; only settings of [run], but the seed, and [net] can"
            )
        _apply(values, override)
    return _validated(values, None)


def _validated(values: dict[str, Any], file: Path | None) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(sentence(error, f" (in {file} or --set)" if file else " (--set)")) from error


def _apply(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    parts = path.strip().split(".")
    if not equals or len(parts) != 2 or not all(parts):
        raise ConfigError(f"--set {override!r} is not of the form section.field=value, e.g. --set round.local=4")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    value = parsed["value"] if len(parsed) == 1 else text  # a bare word is a string
    section = values.setdefault(parts[0], {})
    if not isinstance(section, dict):
        raise ConfigError(f"{parts[0]} is a section and cannot hold a value; write [{parts[0]}]")
    section[parts[1]] = value


def sentence(error: ValidationError, source: str) -> str:
    """The first thing that is wrong; `source` says where it was written."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the configuration"
    if first["type"] == "extra_forbidden":
        return f"there is no setting {where}{source}; `waggle config` lists them all"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}{source}: {message}" if first["loc"] else f"{message}{source}"


def dump(config: Config) -> str:
    """The configuration as TOML that `load` reads back to the same value."""
    lines: list[str] = []
    for section, values in config.model_dump(mode="json").items():
        lines.append(f"[{section}]")
        lines += [f"{field} = {_toml(value)}" for field, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
