#!/usr/bin/env python3
"""What the loss of a rank costs a run in time: one of its ranks is killed half-way.

    python3 tools/bench_lost_rank.py [--strategies ddp,zero3] [--ranks 2] [--steps 50] [--rounds 1]

The wall time of the run, beside what its steps would have taken at the speed of all ranks before the kill and of those
that are left after it. Both speeds are measured right before the run by short ones with as many ranks. Steps take a
second or more with the standard model.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/faults"))
import harness  # noqa: E402

SPEED_STEPS, SPEED_WARM = 8, 2


def steps_of(log):
    """How long each step so far took; the last line may be half written."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(log, encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if event["event"] == "step":
                    found.append(event["step_time"])
    return found


class Run:
    """Steps are timed when their line is seen."""

    def __init__(self, options, strategy, ranks, steps, folder):
        self.log, self.ends = os.path.join(folder, f"{strategy}-{ranks}-{steps}.jsonl"), []
        command = [harness.PROGRAM, "train", "--model", options.model, "--data", "synthetic:markov", "--seq", "128",
                   "--batch", str(options.batch), "--micro-batch", "2", "--threads", "1", "--engine", "tcp", "--parallel",
                   strategy, "--ranks", str(ranks), "--steps", str(steps), "--log-file", self.log, "--log", "silent", "--json"]
        self.errors = open(os.path.join(folder, "errors"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.errors)

    def watch(self, until):
        """Until that many steps are over, or the process ends."""
        while len(self.ends) < until and self.process.poll() is None:
            time.sleep(0.005)
            self.ends += [time.monotonic()] * (len(steps_of(self.log)) - len(self.ends))

    def end(self):
        self.watch(sys.maxsize)
        if self.process.wait() != 0:
            self.errors.seek(0)
            raise SystemExit(f"{' '.join(self.process.args)}: {self.errors.read()[-500:]}")
        self.ends += [time.monotonic()] * (len(steps_of(self.log)) - len(self.ends))

    def kill_one_rank(self):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], stdout=subprocess.PIPE, text=True, check=True).stdout
        os.kill(int(children.split()[-1]), signal.SIGKILL)
        return time.monotonic()


def seconds_a_step(options, strategy, ranks, folder):
    run = Run(options, strategy, ranks, SPEED_STEPS, folder)
    run.end()
    return statistics.median(steps_of(run.log)[SPEED_WARM:])


def lose_one(options, strategy, folder):
    left = options.ranks - 1
    all_ranks = seconds_a_step(options, strategy, options.ranks, folder)
    survivors = seconds_a_step(options, strategy if left > 1 else "ddp", left, folder)
    run = Run(options, strategy, options.ranks, options.steps, folder)
    run.watch(1)
    begin = run.ends[0]
    run.watch(options.steps // 2)
    time.sleep(all_ranks / 3)
    killed = run.kill_one_rank()
    before = len(run.ends)
    run.end()
    wall = run.ends[-1] - begin
    expected = (before - 1) * all_ranks + (options.steps - before) * survivors
    print(f"{strategy:8} {all_ranks:.2f} s a step with {options.ranks} ranks, {survivors:.2f} s with {left}; next step "
          f"{run.ends[before] - killed:.2f} s after the kill; {len(run.ends)} steps in {wall:.1f} s, at those speeds {expected:.1f} s: "
          f"{wall / expected:.3f} times", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tinytransformer-small")
    parser.add_argument("--strategies", default="ddp,zero3")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for strategy in options.strategies.split(","):
            with tempfile.TemporaryDirectory() as folder:
                lose_one(options, strategy, folder)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
