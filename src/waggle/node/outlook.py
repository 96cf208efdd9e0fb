"""What a run with a configuration would do, without a run: no weights are loaded and nothing is written.

A model that is not on this machine yet, or not converted, has no plan of its memory: making one would fetch it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from waggle.core.config import Config
from waggle.core.errors import ModelError
from waggle.node import build
from waggle.policy import bundled, tiny
from waggle.policy.load import resolve
from waggle.tasks.taskset import require_distinct


def outlook(config: Config, nodes: int) -> Iterator[tuple[str, str]]:
    """What it would learn, with which model, on how many threads, and how long.

    Raises:
        WaggleError: whatever would keep the run from starting.
    """
    with tempfile.TemporaryDirectory() as folder:
        families = build.families_of(config, Path(folder))
        require_distinct(families)
    yield "families", ", ".join(family.label for family in families)
    yield "model", f"{config.model.name}, {_where(config.model.name)}"
    trained = f"LoRA of rank {config.model.lora_rank}" if config.model.lora_rank else "all weights"
    yield "training", f"{trained}, {config.round.local} own and {config.round.foreign} foreign groups a round"
    yield "nodes", f"{nodes} on {config.model.threads or build.cores()} threads together"
    yield "memory", _memory(config, nodes)
    ends = [f"{config.run.rounds} rounds"] * bool(config.run.rounds)
    ends += [f"{config.run.minutes:g} minutes"] * bool(config.run.minutes)
    yield "ends", " or ".join(ends) + " of training" if ends else "when it is stopped"


def _where(name: str) -> str:
    """Where the model comes from, found without loading or converting it.

    Raises:
        ModelError: it is not installed, or not there.
    """
    if name == bundled.NAME:
        bundled.bundled_file()
        return "installed with waggle"
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no model file {name}; check the path")
        return "a GGUF file, converted on first use"
    source = resolve(name)
    if name.partition(":")[0] in tiny.NAMES:
        return "random weights"
    return f"the folder {source}" if Path(source).is_dir() else "a hub id, fetched where it is not in the cache"


def _memory(config: Config, nodes: int) -> str:
    """What the nodes would need, and what would be made smaller.

    Raises:
        ModelError: they do not fit into memory.
    """
    model = config.model
    path = bundled.converted_folder(bundled.cache_folder()) if model.name == bundled.NAME else Path(model.name)
    if not (path.expanduser().is_dir() or model.name.partition(":")[0] in tiny.NAMES):
        return "planned when the model has been fetched and converted, which the first run does"
    planned = build.plan_memory(config, nodes)
    return "; ".join((planned.arithmetic(), *planned.notes))
