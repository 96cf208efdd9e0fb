"""The questions of a swarm: from a reference to the task, the next draws of an author, the held-out ones.

Every question of the reserved buckets is passed over in training, whoever draws it, so that held-out
questions are disjoint from what was trained on by question and not by seed. Prompts are few-shot chats with
fixed examples a family, taken from a bucket of their own: all questions of a family share their beginning.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from waggle.core.codec import digest
from waggle.core.errors import TaskError
from waggle.core.rng import seed_for
from waggle.core.sealing import charter_digest
from waggle.core.types import Admission, Charter, Family, Message, Task, TaskRef
from waggle.tasks import gym
from waggle.tasks.families import why_unusable
from waggle.tasks.files import FileQuestions
from waggle.tasks.questions import Bucket, bucket, question_digest
from waggle.tasks.stream import EPOCH, Cursor, after, positions, ref_at
from waggle.tasks.working import WORKINGS

MIN_QUESTIONS = 1000
"""Fewer distinct questions than this leave no held-out set worth the name."""

_PATIENCE = 2 * EPOCH


class Taskset:
    """A charter's tasks. Example: `Taskset(charter).draw(key.id, Cursor(), 6)`.

    Args:
        charter: what the swarm is.
        folder_for_files: where task files are kept, by digest; needed where the charter has some.

    Raises:
        TaskError: a family that this machine cannot make, or two of one name.
    """

    def __init__(self, charter: Charter, folder_for_files: Path | None = None) -> None:
        self.charter, self.digest = charter, charter_digest(charter)
        self.families = {digest(family): family for family in charter.families}
        self._files: dict[bytes, FileQuestions] = {}
        self._prefixes: dict[bytes, tuple[Message, ...]] = {}
        self._tasks: OrderedDict[TaskRef, Task] = OrderedDict()
        self._heldout: dict[tuple[str, int, tuple[str, ...]], list[tuple[Task, int]]] = {}
        labels = [family.label for family in charter.families]
        for label in labels:
            if labels.count(label) > 1:
                raise TaskError(f"two families of the charter are named {label!r}; give one of them another name")
        for family_digest, family in self.families.items():
            if family.source == "file":
                self._files[family_digest] = FileQuestions(folder_for_files, family)
            else:
                _check_gym_family(family)

    def family(self, ref: TaskRef) -> Family:
        """The family that a reference names.

        Raises:
            TaskError: the charter has no such family.
        """
        family = self.families.get(ref.config)
        if family is None or family.env != ref.env:
            raise TaskError(f"the charter has no family {ref.env!r} with configuration {ref.config.hex()[:12]}")
        return family

    def regenerate(self, ref: TaskRef) -> Task:
        """The task of a reference, whichever bucket it is in.

        Raises:
            TaskError: no such family, an index outside the epoch, or a question that cannot be made.
        """
        task = self._tasks.get(ref)
        if task is None:
            task = self._make(self.family(ref), ref)
            self._tasks[ref] = task
            if len(self._tasks) > EPOCH:
                self._tasks.popitem(last=False)
        return task

    def bucket(self, task: Task) -> Bucket:
        """Where the task's question belongs; only `train` is trained on, shared or admitted."""
        return bucket(task.question)

    def draw(
        self, author: bytes, cursor: Cursor, count: int, families: Collection[str] = ()
    ) -> tuple[list[Task], Cursor]:
        """The author's next `count` training tasks and the cursor behind them.

        Raises:
            TaskError: no such family, or none of the next draws can be used.
        """
        self._check_names(families)
        wanted = {self.charter.families[i].label for i in positions(self.charter, tuple(families))}
        tasks: list[Task] = []
        idle = 0
        while len(tasks) < count:
            task = self._usable(ref_at(self.charter, self.digest, author, cursor), wanted)
            cursor = after(cursor)
            idle = 0 if task else idle + 1
            if task:
                tasks.append(task)
            elif idle >= _PATIENCE:
                names = ", ".join(sorted(wanted))
                raise TaskError(f"none of {_PATIENCE} draws in a row gives a question of {names}; choose more families")
        return tasks, cursor

    def _usable(self, ref: TaskRef, wanted: Collection[str]) -> Task | None:
        if self.families[ref.config].label not in wanted:
            return None
        try:
            task = self.regenerate(ref)
        except TaskError:  # a question its environment fails to make is passed over by everybody
            return None
        return task if bucket(task.question) == "train" else None

    def heldout(self, kind: Literal["steer", "report"], count: int, families: Collection[str] = ()) -> list[Task]:
        """`count` distinct questions of a reserved bucket, family by family in turn, the same for every node.

        Raises:
            TaskError: no such family, or fewer questions in the bucket than asked for.
        """
        return [task for task, _ in self._found(kind, count, families)]

    def frequencies(self, kind: Literal["steer", "report"], count: int, families: Collection[str] = ()) -> list[int]:
        """How often each question of `heldout` was drawn while they were being found.

        A family's easy questions are often few and drawn often; a mean over distinct questions alone would be
        about another mixture than the one that is trained on.
        """
        return [times for _, times in self._found(kind, count, families)]

    def _found(self, kind: Literal["steer", "report"], count: int, families: Collection[str]) -> list[tuple[Task, int]]:
        key = (kind, count, tuple(sorted(families)))
        if key not in self._heldout:
            self._heldout[key] = self._find_heldout(kind, count, families)
        return self._heldout[key]

    def _find_heldout(
        self, kind: Literal["steer", "report"], count: int, families: Collection[str]
    ) -> list[tuple[Task, int]]:
        self._check_names(families)
        chosen = [self.charter.families[i] for i in sorted(positions(self.charter, tuple(families)))]
        streams = [self._reserved(family, kind, _PATIENCE + 40 * count) for family in chosen]
        tasks: dict[bytes, Task] = {}
        times: Counter[bytes] = Counter()
        for family, stream in itertools.cycle(zip(chosen, streams, strict=True)):
            if len(tasks) >= count:
                break
            for task in stream:
                times[task.question] += 1
                if task.question not in tasks:
                    tasks[task.question] = task
                    break
            else:
                raise TaskError(f"{family.label} has too few questions to {kind} with for {count} in all; take fewer")
        return [(task, times[question]) for question, task in tasks.items()]

    def _reserved(self, family: Family, kind: Literal["steer", "report"], limit: int) -> Iterator[Task]:
        config = digest(family)
        for number in range(limit):
            epoch, index = divmod(number, EPOCH)
            seed = seed_for("heldout", self.digest, kind, config, epoch)
            try:
                task = self._make(family, TaskRef(family.env, config, seed, epoch, index))
            except TaskError:
                continue
            if bucket(task.question) == kind:
                yield task

    def _check_names(self, families: Iterable[str]) -> None:
        known = [family.label for family in self.charter.families]
        for name in families:
            if name not in known:
                raise TaskError(f"the charter has no family {name!r}; its families are {', '.join(known)}")

    def _item(self, family: Family, config: bytes, seed: int, index: int) -> gym.Item:
        if family.source == "file":
            return self._files[config].item(seed, index)
        return gym.item(family, seed, index)

    def _make(self, family: Family, ref: TaskRef) -> Task:
        if ref.index >= EPOCH:
            raise TaskError(f"index {ref.index} is outside an epoch of {EPOCH} draws")
        item = self._item(family, ref.config, ref.seed, ref.index)
        prompt = (*self._prefix(family, ref.config), Message("user", item["question"]))
        truth, question = str(item["answer"] or ""), question_digest(family, item)
        return Task(ref, prompt, family.grader, truth, question, family.max_tokens, family.source == "file")

    def _prefix(self, family: Family, config: bytes) -> tuple[Message, ...]:
        if config not in self._prefixes:
            turns = (turn for item in self._shots(family, config) for turn in _turns(family, item))
            self._prefixes[config] = tuple(turns)
        return self._prefixes[config]

    def _shots(self, family: Family, config: bytes) -> list[gym.Item]:
        """Examples with answers that differ, as far as the family has any."""
        found: dict[bytes, gym.Item] = {}
        answers: set[str] = set()
        seed = seed_for("shots", config)
        for index in range(EPOCH):
            if len(found) >= family.shots:
                break
            item = self._item(family, config, seed, index)
            question = question_digest(family, item)
            fresh = item["answer"] not in answers or index > EPOCH // 16
            if bucket(question) == "shots" and question not in found and fresh:
                found[question] = item
                answers.add(item["answer"])
        return list(found.values())


def _turns(family: Family, item: gym.Item) -> tuple[Message, Message]:
    answer = WORKINGS[family.working](item) if family.working else str(item["answer"])
    return Message("user", item["question"]), Message("assistant", answer)


def _check_gym_family(family: Family) -> None:
    if family.version != gym.version():
        raise TaskError(
            f"{family.label} needs reasoning-gym {family.version} and {gym.version()} is installed; "
            f"run `pip install reasoning-gym=={family.version}`"
        )
    if family.working and family.working not in WORKINGS:
        raise TaskError(f"{family.label} shows its working as {family.working!r}, which this version does not know")
    gym.check_config(family.env, family.config)
    if reason := why_unusable(family):
        raise TaskError(f"{family.label} cannot be used: {reason}")


def show(family: Family, count: int = 2, folder_for_files: Path | None = None) -> list[Task]:
    """Tasks of a family as a model would see them, with their truths.

    Raises:
        TaskError: a charter cannot hold the family.
    """
    charter = Charter("show", (family,), 1, Admission(), 0.0, "", (), bytes(32), 0)
    return Taskset(charter, folder_for_files).heldout("steer", count)


def overlap(trained: Collection[bytes], heldout: Sequence[Task]) -> int:
    """How many held-out questions were trained on. Must be zero."""
    seen = set(trained)
    return sum(task.question in seen for task in heldout)


def distinct_questions(family: Family, enough: int = MIN_QUESTIONS, patient: Callable[[], bool] = lambda: True) -> int:
    """How many distinct questions an environment's family has, counted up to `enough`.

    Counts what 4 x `enough` draws show. Where the first 200 draws do not repeat at all, the family is taken to
    have enough: of 1,000 equally likely questions that happens once in 10^8 tries (birthday bound exp(-n^2/2N)).
    Ends early when `patient` says no, asked before each draw.
    """
    seen: set[bytes] = set()
    seed = seed_for("count", digest(family))
    for number in range(4 * enough):
        if not patient():
            break
        try:
            item = gym.item(family, seed + number // EPOCH, number % EPOCH)
        except TaskError:
            continue
        seen.add(question_digest(family, item))
        if len(seen) >= enough or (number + 1 == len(seen) == 200):
            return enough
    return len(seen)


def require_distinct(families: Iterable[Family]) -> None:
    """Refuse families that are too small to hold questions out. Called when a charter is founded.

    Task files are counted exactly when they are read, against a smaller number.

    Raises:
        TaskError: naming the family and its count.
    """
    for family in families:
        count = MIN_QUESTIONS if family.source == "file" else distinct_questions(family)
        if count < MIN_QUESTIONS:
            raise TaskError(
                f"{family.label} has {count} distinct questions; {MIN_QUESTIONS} are needed to hold some out, "
                "so widen its configuration"
            )
