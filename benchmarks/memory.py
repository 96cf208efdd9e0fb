"""Peak memory (VmHWM) of one node: full fine-tuning and LoRA of the bundled model, graders apart.

Run: python benchmarks/memory.py [--rounds 4]

Each case is a process of its own that plays whole rounds of `waggle join` with an evaluation and a checkpoint.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import sys
from pathlib import Path
from waggle.cli import main
sys.argv = ["waggle", *sys.argv[1:]]
try:
    main()
finally:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            print("PEAK", int(line.split()[1]) / 1e6)
"""


def peak_gb(rounds: int, *sets: str) -> float:
    """GB of a node's process at its largest."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"run.rounds={rounds}", f"eval.every={rounds}", "eval.report=30", "eval.steer=30", *sets]
        command = ["join", "--key", f"{folder}/key", "--run", f"{folder}/run", *(f"--set={s}" for s in settings)]
        result = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    return float(next(line.split()[1] for line in result.stdout.splitlines() if line.startswith("PEAK")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        raise SystemExit("this benchmark reads /proc and needs Linux")
    for name, sets in (
        ("all weights, told to stay in 3.0 GB", ("model.memory_gb=3.0",)),
        ("LoRA of rank 16, told to stay in 1.5 GB", ("model.lora_rank=16", "model.memory_gb=1.5")),
    ):
        print(f"{name}: peak {peak_gb(options.rounds, *sets):.2f} GB", flush=True)


if __name__ == "__main__":
    main()
