"""Decoding against `transformers.generate`: tokens a second, same model, prompts, threads, precision and lengths.

Run: python benchmarks/decode.py [--model smollm2-135m] [--rows 32] [--new 64] [--turns 5]

Both draw at temperature 1 from the same prompts, `rows` completions in one batch, and are kept from stopping early
(their stop ids are out of reach), so that both make exactly rows x new tokens.
"""

import argparse
import os

import torch
from common import seconds, side_by_side, spread, training_tasks

from waggle.core.types import Sampling
from waggle.policy.load import load
from waggle.policy.sampler import generate
from waggle.tasks.families import family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = load(options.model)
    tasks = training_tasks([family("chain_sum", max_tokens=options.new)], options.rows // options.group)
    stops, policy.stop_ids = policy.stop_ids, (policy.vocabulary + 1,)
    sampling = Sampling(max_tokens=options.new, seed=1)
    prompts = [policy.encode_prompt(task.prompt) for task in tasks for _ in range(options.group)]
    width = max(map(len, prompts))
    ids_BT = torch.tensor([[stops[0]] * (width - len(p)) + list(p) for p in prompts])
    mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    policy.model.generation_config.eos_token_id = None

    def ours() -> float:
        return options.rows * options.new / seconds(lambda: generate(policy, tasks, options.group, sampling))

    def theirs() -> float:
        def call() -> None:
            with torch.inference_mode():
                out = policy.model.generate(
                    ids_BT,
                    attention_mask=mask_BT,
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=options.new,
                    min_new_tokens=options.new,
                    pad_token_id=stops[0],
                )
            assert out.shape == (options.rows, width + options.new)

        return options.rows * options.new / seconds(call)

    pairs = side_by_side(ours, theirs, options.turns)
    print(f"{options.rows} rows of {width} + {options.new} tokens, {options.threads} threads, float32")
    print(f"waggle    {spread([a for a, _ in pairs])} tokens/s")
    print(f"generate  {spread([b for _, b in pairs])} tokens/s")
    print(f"ratio     {spread([a / b for a, b in pairs])}")


if __name__ == "__main__":
    main()
