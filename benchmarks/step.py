"""A full step (sample, grade, update) against TRL's GRPOTrainer: same model, questions, threads, precision, tokens.

Run: python benchmarks/step.py [--prompt 120] [--new 8] [--groups 6] [--group 8] [--turns 3]
Needs TRL beside waggle: pip install trl datasets

Both do one optimiser step a turn on `groups` questions with `group` completions of exactly `new` tokens, float32,
AdamW over all weights, no reference model. Prompts are padded with words to `prompt` tokens. Stop ids are out of
reach on both sides, so both generate and train the same number of tokens. Waggle's step is timed twice: with
prompts that share nothing across questions (the shared part is within a group), and with few-shot examples shared.
Each side runs in a process of its own, in turns, with the memory that it takes by itself (`--memory-gb` bounds
Waggle's as `model.memory_gb` does); the largest that each process held is printed beside the times.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from common import spread

from waggle.core.codec import digest_bytes
from waggle.core.config import LearnConfig
from waggle.core.types import Group, Message, PolicyRef, Rollout, Sampling, Task, TaskRef, Verdict
from waggle.policy.load import load
from waggle.policy.machine import keep_heap
from waggle.policy.memory import MemoryPlan, plan
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.rl.batch import build
from waggle.rl.trainer import Trainer

WORDS = "red blue green small large quick slow bright dark warm cold soft hard round flat old new".split()


def reward(text: str) -> float:
    """A cheap grade that splits most groups."""
    return float(sum(text.encode()) % 2)


def prompt_of(policy: Policy, number: int, length: int, shared: int) -> tuple[Message, ...]:
    """A question of about `length` tokens whose first `shared` words are everybody's."""
    words = [WORDS[(7 * i) % len(WORDS)] for i in range(shared)]
    step = number + 1
    while True:
        message = (Message("user", " ".join(words)),)
        if len(policy.encode_prompt(message)) >= length:
            return message
        words.append(WORDS[(step * len(words) + number) % len(WORDS)])


def tasks_of(policy: Policy, options: Any, shared: int) -> list[Task]:
    config = digest_bytes("Family", b"benchmark")
    tasks = []
    for number in range(options.groups):
        question = digest_bytes("Question", str(number).encode())
        prompt = prompt_of(policy, number, options.prompt, shared)
        tasks.append(Task(TaskRef("benchmark", config, 0, 0, number), prompt, "exact", "", question, options.new))
    return tasks


def our_step(policy: Policy, planned: MemoryPlan, options: Any, shared: int) -> Callable[[], float]:
    learn = LearnConfig(token_budget=planned.token_budget)
    trainer = Trainer(policy, learn, activation_bytes=planned.activation_bytes)
    tasks = tasks_of(policy, options, shared)
    author, seed = bytes(32), [0]

    def step() -> float:
        seed[0] += 1
        started = time.perf_counter()
        sampling = Sampling(max_tokens=options.new, seed=seed[0])
        answers = generate(policy, tasks, options.group, sampling)
        groups = []
        for task, row in zip(tasks, answers, strict=True):
            rollouts = tuple(Rollout(c, Verdict(float(i % 2))) for i, c in enumerate(row))
            assert all(len(c.tokens.ids) == options.new for c in row if c.tokens)
            ref = PolicyRef(policy.name, bytes(32), seed[0])
            groups.append(Group(task, ref, sampling, rollouts, author, seed[0], bytes(32)))
        batch = build(groups, policy, author)
        assert batch.num_tokens == options.groups * options.group * options.new
        trainer.step(batch)
        return time.perf_counter() - started

    return step


def our_times(options: Any) -> dict[str, list[float]]:
    """Seconds of each of Waggle's steps, the first left out, in the memory that a node would plan for."""
    planned = plan(options.model, token_budget=options.budget, memory_gb=options.memory_gb)
    if planned.roomy:
        keep_heap()
    policy = load(options.model)
    policy.kv_bytes = planned.kv_bytes
    policy.stop_ids = (policy.vocabulary + 1,)
    times = {}
    for name, shared in (("shared in groups", 0), ("shared examples", int(0.7 * options.prompt))):
        step = our_step(policy, planned, options, shared)
        step()
        times[name] = [step() for _ in range(options.turns)]
    return times


def their_times(policy: Policy, options: Any, steps: int) -> list[float]:
    """Seconds of each of TRL's steps, the first left out."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks: list[float] = []

    class Mark(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.perf_counter())

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.perf_counter())

    rows = [
        {
            "prompt": policy.tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in task.prompt],
                tokenize=False,
                add_generation_prompt=True,
            )
        }
        for task in tasks_of(policy, options, 0)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.groups * options.group,
            num_generations=options.group,
            max_completion_length=options.new,
            max_steps=steps,
            beta=0.0,
            learning_rate=3e-5,
            gradient_checkpointing=options.checkpointing,
            bf16=False,
            fp16=False,
            use_cpu=True,
            report_to=[],
            logging_steps=1000,
            save_strategy="no",
            temperature=1.0,
            disable_tqdm=True,
            generation_kwargs={"min_new_tokens": options.new},
            scale_rewards="none",
            loss_type="dapo",
        )
        trainer = GRPOTrainer(
            policy.model,
            reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_list(rows * steps),
            processing_class=policy.tokenizer,
            callbacks=[Mark()],
        )
        trainer.train()
    return [b - a for a, b in itertools.pairwise(marks[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompt", type=int, default=120)
    parser.add_argument("--new", type=int, default=8)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--checkpointing", action="store_true", help="let TRL use gradient checkpointing")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--memory-gb", type=float, default=0.0, help="what Waggle may use; 0 takes what is free")
    parser.add_argument("--side", choices=("waggle", "trl"), help="measure one side in this process, as JSON")
    options = parser.parse_args()
    if options.side:
        measure(options)
        return
    results: dict[str, list[float]] = {}
    peaks: dict[str, list[float]] = {}
    for turn in range(2):  # in turns, so that a busy moment does not fall on one side only
        for side in ("waggle", "trl"):
            command = [sys.executable, __file__, "--side", side, *sys.argv[1:]]
            told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
            peaks.setdefault(side, []).append(told["peak_gb"])
            for name, times in told["times"].items():
                results.setdefault(name, []).extend(times)
        print(f"turn {turn + 1} of 2 done", flush=True)
    theirs = sorted(results["TRL"])[len(results["TRL"]) // 2]
    print(
        f"{options.groups} x {options.group} completions of {options.new} tokens, prompts of {options.prompt}, "
        f"{options.threads} threads, float32"
    )
    for name, times in results.items():
        print(f"{name:17s} {spread(times)} s a step, ratio to TRL {spread([t / theirs for t in times])}")
    print(f"largest resident memory: Waggle {max(peaks['waggle']):.1f} GB, TRL {max(peaks['trl']):.1f} GB")


def measure(options: Any) -> None:
    """One side's times, and the largest memory of this process, as a line of JSON."""
    torch.set_num_threads(options.threads)
    if options.side == "waggle":
        times = our_times(options)
    else:
        times = {"TRL": their_times(load(options.model), options, options.turns + 1)}
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"times": times, "peak_gb": peak_gb}))


if __name__ == "__main__":
    main()
