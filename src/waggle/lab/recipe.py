"""A recipe: what is compared with what, on which questions, with which model, how often.

One TOML file, read strictly: an unknown field, a setting without effect or two arms of one name are refused in a
sentence. An arm is a named list of settings on top of the recipe's own, the same that `--set` takes.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from waggle.core.codec import digest
from waggle.core.config import Config, Positive, Section, Share, load, sentence
from waggle.core.errors import ConfigError, TaskError
from waggle.core.own import is_own, own_digest, own_function
from waggle.core.types import Family
from waggle.lab.attacks import ATTACKS
from waggle.lab.hostile import PLANTED
from waggle.lab.small import WarmUp, small_model
from waggle.policy.bundled import cache_folder
from waggle.tasks.families import family
from waggle.tasks.files import family_from_file

Figure = Literal["area", "level", "swing", "marked", "own_reward", "chars"]


class Small(Section):
    """The small model of a scale experiment, see `small.py`."""

    steps: Positive = 2600
    """Steps of the warm-up."""
    right: Share = 0.06
    """Share of questions that it tries to answer after it."""
    batch: Positive = 32
    hidden: Positive = 64
    layers: Positive = 3
    seed: Annotated[int, Field(ge=0)] = 0
    says: str = ""
    """A text with which right answers begin."""
    manner: Share = 1.0
    """The share of its right answers that do."""

    @model_validator(mode="after")
    def _manner_has_effect(self) -> "Small":
        if self.manner != 1 and not self.says:
            raise ValueError("manner has no effect without says; remove it, or say what right answers begin with")
        return self


class Questions(Section):
    """One family of questions."""

    env: str = ""
    """An environment of Reasoning Gym."""
    file: str = ""
    """A task file instead, for `base` models."""
    grader: str = "exact"
    """How answers to the file's questions are graded."""
    name: str = ""
    working: str = ""
    max_tokens: Positive = 16
    shots: Annotated[int, Field(ge=0)] = 0
    config: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies it)

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> "Questions":
        if bool(self.env) == bool(self.file):
            raise ValueError("a family needs env, an environment, or file, a task file, and not both")
        if self.file and (self.working or self.config):
            raise ValueError(f"working and config have no effect on the questions of {self.file}; remove them")
        if self.env and self.grader != "exact":
            raise ValueError(f"grader has no effect on {self.env}, which grades by itself; remove it")
        return self


class Arm(Section):
    """What is compared."""

    name: str
    title: str = ""
    kind: Literal["plain", "truth", "replay"] = "plain"
    replayed: Annotated[int, Field(ge=0)] = 0
    """Own old groups a step, for `replay`."""
    nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes of this arm, where they are not the recipe's."""
    unlike: Annotated[int, Field(ge=0)] = 0
    """How many nodes, the first ones, start from `unlike_model` instead."""
    unlike_model: Small | None = None
    spread: Annotated[float, Field(ge=1)] = 1.0
    """The fastest node plays this many rounds in the time of one of the slowest."""
    attack: str = ""
    """What the hostile nodes do: an attack (`waggle simulate --list`), or `useless`."""
    hostile: Annotated[int, Field(ge=0)] = 0
    """How many nodes are hostile; the figures are those of the others."""
    set: Annotated[tuple[str, ...], Field(strict=False)] = ()
    seeds: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Seeds of this arm alone; those of the recipe where empty."""


class Claim(Section):
    """A sentence that the experiment is to decide, and the figure that decides it."""

    says: str
    arm: str
    against: str = ""
    """The arm whose figure is subtracted, seed by seed; the figure itself where empty."""
    figure: Figure = "level"
    """`area` and `level` at equal operations, `swing`; of the last evaluation: `marked`, `own_reward`, `chars`."""
    least: float | None = None
    most: float | None = None
    """The figure, or the difference, is at least or at most this with its whole interval: one of the two."""
    mean: float | None = None
    """The same for its mean alone, where that is to be nearer than the interval."""
    nodes: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Nodes whose figures these are, counted from 1; all honest ones where empty."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Claim":
        if (self.least is None) == (self.most is None):
            raise ValueError(f"the claim {self.says!r} needs one of least and most")
        sign, bound = self.side
        if self.mean is not None and sign * self.mean <= sign * bound:
            raise ValueError(f"the claim {self.says!r}: mean has no effect beyond the interval's own bound; remove it")
        return self

    @property
    def side(self) -> tuple[int, float]:
        """1 and the bound from below, or -1 and the one from above."""
        return (1, self.least) if self.least is not None else (-1, self.most or 0.0)


class Recipe(Section):
    """The whole experiment."""

    name: str
    title: str
    nodes: Positive = 8
    rounds: Positive = 40
    """Rounds that every arm plays at the least."""
    gflops: Annotated[float, Field(ge=0)] = 0.0
    """Operations of a node that every arm reaches, in 10^9; who has not after its rounds plays on."""
    every: Positive = 4
    """Rounds between evaluations."""
    seeds: Annotated[tuple[int, ...], Field(strict=False, min_length=1)] = (0, 1, 2, 3, 4)
    questions: int = 0
    """Seed of the charter, hence of the questions; the same in all cells."""
    small: Small = Small()
    base: str = ""
    """A model's name, folder or hub id to start from instead of the small one."""
    family: Annotated[tuple[Questions, ...], Field(strict=False, min_length=1)]
    set: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Settings of every arm."""
    arm: Annotated[tuple[Arm, ...], Field(strict=False, min_length=1)]
    reference: str
    """The arm that all others are held against."""
    goal: str = ""
    """The arm that is to beat them, where there is one."""
    factor: Annotated[float, Field(ge=0)] = 0.0
    """How many times the reference's area the goal's is to be; 0 states no such goal."""
    alone: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Arms that it is held against one by one: those without sharing, and its own ablations."""
    easy: Share = 0.7
    """A family where the reference ends above this is not counted."""
    claim: Annotated[tuple[Claim, ...], Field(strict=False)] = ()
    """What else is to be decided."""
    mark: str = PLANTED
    """A text that is counted in own answers; by default what attackers plant."""

    @model_validator(mode="after")
    def _names_are_different(self) -> "Recipe":
        names = [arm.name for arm in self.arm]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two arms are named {name!r}; give one of them another name")
        for arm in self.arm:
            if (arm.kind == "replay") != bool(arm.replayed):
                raise ValueError(f"arm {arm.name!r}: replayed goes with kind = 'replay', and each needs the other")
            if bool(arm.unlike) != bool(arm.unlike_model):
                raise ValueError(f"arm {arm.name!r}: unlike nodes need unlike_model, and it needs them")
            if bool(arm.attack) != bool(arm.hostile) or arm.hostile >= (arm.nodes or self.nodes):
                raise ValueError(f"arm {arm.name!r}: attack goes with hostile nodes, and some honest ones are left")
            if arm.attack and arm.attack not in (*ATTACKS, "useless"):
                raise ValueError(
                    f"arm {arm.name!r}: there is no attack {arm.attack!r}; `waggle simulate --list` names them"
                )
            if self.base and (arm.unlike or self.small != Small()):
                raise ValueError(f"arm {arm.name!r}: small models have no effect with base; remove one of them")
        if not self.base and any(one.file for one in self.family):
            raise ValueError("the small model is made of environments; with a family from a file, name a base model")
        claimed = [name for claim in self.claim for name in (claim.arm, claim.against) if name]
        for name in (self.reference, *self.alone, *claimed, *([self.goal] if self.goal else [])):
            if name not in names:
                raise ValueError(f"there is no arm {name!r}; the arms are {', '.join(names)}")
        return self

    def families(self) -> tuple[Family, ...]:
        """The families of questions."""
        return _families(self)

    def by_digest(self) -> dict[bytes, Family]:
        """The same by their digests."""
        return {digest(one): one for one in self.families()}

    def model(self, arm: Arm | None = None, number: int = 0) -> str:
        """What a node of an arm starts from, built where needed; without an arm what most nodes do."""
        if self.base:
            return self.base
        unlike = arm.unlike_model if arm and number < arm.unlike else None
        return str(small_model(self.families(), WarmUp(**(unlike or self.small).model_dump())))

    def build(self) -> None:
        """Build every model that the arms need."""
        for arm in self.arm:
            for number in (0, arm.unlike):
                self.model(arm, number)

    def own(self, arm: Arm) -> dict[str, str]:
        """Digests of what an arm takes from files outside of the package: its sampler, its loss, its questions.

        Raises:
            ConfigError: a file or function that is not there.
        """
        config = self.config_of(arm, 0)
        named = [name for name in (config.share.sampler, config.learn.loss) if is_own(name)]
        named += [one.grader for one in self.family if is_own(one.grader)]
        for name in named:
            own_function(name)
        files = {one.file: family.version for one, family in zip(self.family, self.families(), strict=True) if one.file}
        return {**{name: own_digest(name) for name in named}, **files}

    def config_of(self, arm: Arm, seed: int) -> Config:
        """The configuration of an arm's nodes."""
        asked = next((one.file for one in self.family if one.file), "")
        shared = [f"tasks.file={asked}", "tasks.share_file=true"] if asked else []
        return load(None, [*self.set, *arm.set, *shared, f"run.seed={seed}", "model.threads=1", "eval.every=0"])


def _families(recipe: Recipe) -> tuple[Family, ...]:
    return tuple(
        family_from_file(
            Path(q.file), q.grader, folder=task_files(), name=q.name, shots=q.shots, max_tokens=q.max_tokens
        )
        if q.file
        else family(q.env, q.config, name=q.name, shots=q.shots, working=q.working, max_tokens=q.max_tokens)
        for q in recipe.family
    )


def task_files() -> Path:
    """Where copies of recipes' task files are kept, by their digests."""
    return cache_folder() / "recipe-files"


def read_recipe(file: Path) -> Recipe:
    """The recipe in a file; every arm's settings are tried.

    Raises:
        ConfigError: it cannot be read, or says something that has no meaning or no effect.
    """
    try:
        recipe = Recipe.model_validate(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {file}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(sentence(error, f" in {file}")) from error
    try:
        for arm in recipe.arm:
            recipe.own(arm)
    except TaskError as error:
        raise ConfigError(f"{file}: {error}") from error
    return recipe
