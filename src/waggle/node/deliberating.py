"""`waggle deliberate`: models answer, read each other, criticise, vote, and answer again; did talking help?

Each model is loaded for each stage and let go of, so that as many can talk as there are. What a reader is shown is a
few answers, his own among them, in an order that follows from the question and him, so that no place is the best one.
The final answers are held against three others to the same questions: each one's first, the most frequent first answer
(which takes no talking), and the best that any of them gave.

This measures; nobody learns from it.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from waggle.core.codec import digest_bytes
from waggle.core.config import Config
from waggle.core.errors import ConfigError
from waggle.core.events import json_line
from waggle.core.files import write_atomic
from waggle.core.keys import Key, peer_name
from waggle.core.rng import rng_for, seed_for
from waggle.core.types import Charter, Sampling, Task
from waggle.node import build
from waggle.node.asking import Exam, load_model
from waggle.node.comparison import Comparison, compare
from waggle.node.evaluate import FamilyScore, Outcome, Score, scores
from waggle.node.runfolder import RunFolder, node_folders
from waggle.node.view import shown
from waggle.policy.sampler import generate
from waggle.tasks.deliberation import MAX_READ, NONE, Said, chosen, critique, final_answer, vote
from waggle.tasks.working import ANSWER

Speak = Callable[[Sequence[Task], int], list[str]]
"""(tasks, seed) -> a text for each."""


class Speaker(NamedTuple):
    """Who talks: a short name, and what says something in its place."""

    name: str
    speak: Speak


@dataclass
class Talk:
    """What came of it, by speaker and question."""

    firsts: dict[str, list[str]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    votes: dict[str, list[str]] = field(default_factory=dict)
    shown: dict[str, list[list[str]]] = field(default_factory=dict)
    """Whose answers each reader was shown."""

    def named(self, texts: dict[str, list[str]], speaker: str) -> list[str]:
        """Whom a speaker's texts name as best, question by question."""
        return [chosen(text, who) for text, who in zip(texts[speaker], self.shown[speaker], strict=True)]


def deliberate(speakers: Sequence[Speaker], tasks: Sequence[Task], seed: int, most: int = MAX_READ) -> Talk:
    """Play the three stages. One speaker is enough.

    Args:
        most: answers that each is shown.
    """
    talk = Talk()
    for one in speakers:
        talk.firsts[one.name] = one.speak(tasks, seed_for(seed, "answer", one.name))
    names = [one.name for one in speakers]
    for one in speakers:
        talk.shown[one.name] = [_reads(task, one.name, names, seed, most) for task in tasks]
        stage = [critique(task, _said(talk.firsts, who, i)) for i, (task, who) in enumerate(_pairs(tasks, talk, one))]
        talk.remarks[one.name] = one.speak(stage, seed_for(seed, "critique", one.name))
    for one in speakers:
        stage = [
            vote(task, _said(talk.firsts, who, i), _said(talk.remarks, who, i))
            for i, (task, who) in enumerate(_pairs(tasks, talk, one))
        ]
        talk.votes[one.name] = one.speak(stage, seed_for(seed, "vote", one.name))
    return talk


def _pairs(tasks: Sequence[Task], talk: Talk, one: Speaker) -> list[tuple[Task, list[str]]]:
    return list(zip(tasks, talk.shown[one.name], strict=True))


def _reads(task: Task, me: str, names: Sequence[str], seed: int, most: int) -> list[str]:
    """Whose answers a reader is shown: his own and others', in any order."""
    rng = rng_for(seed, "reads", task.question, digest_bytes("Speaker", me.encode()))
    others = [name for name in names if name != me]
    who = [me, *(others[i] for i in rng.permutation(len(others)).tolist())][:most]
    return [who[i] for i in rng.permutation(len(who)).tolist()]


def _said(texts: dict[str, list[str]], who: Sequence[str], number: int) -> list[Said]:
    return [Said(name, texts[name][number], digest_bytes("Said", texts[name][number].encode())) for name in who]


def deliberate_command(
    console: Console, models: Sequence[str], config: Config, most: int, json_file: Path | None
) -> None:
    """Let models talk about held-out questions and say what came of it.

    Raises:
        WaggleError: a model, run or setting that cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        speakers, charter, files = _who(models, config, Path(folder))
        with closing(Exam(charter, config, files)) as exam:
            tasks = exam.tasks()
            console.print(f"{len(speakers)} models talk about {len(tasks)} held-out questions, in three stages ...")
            told = _judged(console, exam, tasks, deliberate(speakers, tasks, config.run.seed, most))
    if json_file:
        write_atomic(json_file, json_line(told).encode())


def _who(models: Sequence[str], config: Config, files: Path) -> tuple[list[Speaker], Charter, Path]:
    """The speakers and their questions: of a run its nodes and its swarm's, else the models named and new ones."""
    runs = [Path(model) for model in models if (Path(model) / "run.json").exists()]
    if runs and len(models) > 1:
        raise ConfigError(f"{runs[0]} is a run, whose nodes talk; leave out the others, or name models of it")
    if runs:
        folders = [RunFolder(path) for path in node_folders(runs[0])]
        named = [(_name(folder), str(folder.model)) for folder in folders if folder.model.exists()]
        charter, files = folders[0].charter(), runs[0] / build.FILES
    else:
        named = [(f"speaker-{number}", model) for number, model in enumerate(models, 1)]
        charter = build.found_charter(config, build.local_key(config.run.seed, 0), "evaluation", files)
    if not named:
        raise ConfigError(f"no node of {runs[0]} has exported a model yet; let it play until its first evaluation")
    return [Speaker(name, _speak(model, config)) for name, model in named], charter, files


def _name(folder: RunFolder) -> str:
    return peer_name(Key.load(folder.key_file).id)


def _speak(model: str, config: Config) -> Speak:
    def speak(tasks: Sequence[Task], seed: int) -> list[str]:
        policy = load_model(model, config)
        longest = max(task.max_tokens for task in tasks)
        sampling = Sampling(temperature=config.eval.temperature, max_tokens=longest, seed=seed)
        return [answers[0].text for answers in generate(policy, tasks, 1, sampling)]

    return speak


def _judged(console: Console, exam: Exam, tasks: Sequence[Task], talk: Talk) -> dict[str, Any]:
    """Grade, print, and return the figures."""
    names = list(talk.firsts)
    worked = [exam.taskset.family(task.ref).working for task in tasks]
    firsts = {name: exam.outcomes(tasks, talk.firsts[name]) for name in names}
    finals = {
        name: exam.outcomes(tasks, [_final(text, shows) for text, shows in zip(talk.votes[name], worked, strict=True)])
        for name in names
    }
    frequent = exam.outcomes(tasks, [_most_frequent([talk.firsts[n][i] for n in names]) for i in range(len(tasks))])
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{len(tasks)} held-out questions, 95 % intervals")
    for title in ("speaker", "first answer", "final answer", "final less first", "best named right"):
        table.add_column(title, justify="left" if title == "speaker" else "right", overflow="fold")
    told: dict[str, Any] = {"questions": len(tasks), "most frequent first answer": _rate(frequent)}
    for name in names:
        gain = compare(firsts[name], finals[name])[-1]
        critics, voters = (_named_right(talk, texts, name, firsts) for texts in (talk.remarks, talk.votes))
        told[name] = {"first": _rate(firsts[name]), "final": _rate(finals[name]), "gain": list(gain[2:5])}
        told[name] |= {"critique": critics, "vote": voters}
        spoken = f"{critics:.2f} criticising, {voters:.2f} voting"
        table.add_row(name, shown(_all(firsts[name])), shown(_all(finals[name])), _gain(gain), spoken)
    console.print(table)
    console.print(f"the most frequent first answer, without any talking: {shown(_all(frequent))}")
    return told


def _named_right(talk: Talk, texts: dict[str, list[str]], name: str, firsts: dict[str, list[Outcome]]) -> float:
    """How often a right answer was named as the best, or none where there was none."""
    good = 0.0
    for number, choice in enumerate(talk.named(texts, name)):
        right = {who: sum(firsts[who][number].graded) for who in talk.shown[name][number]}
        good += (max(right.values()) < 1) if choice == NONE else right.get(choice, 0.0)
    return good / max(1, len(texts[name]))


def _final(text: str, worked: str) -> str:
    """The final answer as its family's grader wants it."""
    return f"{ANSWER} {final_answer(text)}" if worked else final_answer(text)


def _most_frequent(texts: Sequence[str]) -> str:
    """The answer that most gave; the first of those that tie."""
    counts = Counter(" ".join(text.rpartition(ANSWER)[2].split()) for text in texts)
    best = counts.most_common(1)[0][0]
    return next(text for text in texts if " ".join(text.rpartition(ANSWER)[2].split()) == best)


def _all(outcomes: Sequence[Outcome]) -> FamilyScore:
    return Score(0, scores(outcomes), 0).over()


def _rate(outcomes: Sequence[Outcome]) -> float:
    return _all(outcomes).rate


def _gain(one: Comparison) -> str:
    return f"{one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"
