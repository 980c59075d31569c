#!/usr/bin/env python3
"""Proves: a run of training whose ranks hold parts of its state ends with the weights of the undisturbed run, whichever
ranks are killed whenever: at one stroke or one after the other, in a step, while the others find together, while they
save. Where a rank and its mirror die at one stroke, the run goes back to its checkpoint.

Prints for each run what was killed and the hash, at the end the kills and how long the others took until their next step
(median, worst; from the stroke, with the rest of that step).

    training_kills.py [--kills 100] [--seed N] [--strategy NAME] [--quick] [--break]

--quick: 6 kills. --strategy: runs with this one alone. --break compares with wrong weights: must fail.
"""

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import harness

RUN = ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "40", "--seq", "32", "--batch",
       "12", "--micro-batch", "1", "--threads", "1", "--engine", "tcp", "--deterministic", "true", "--json"]


def children(pid):
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(one) for one in listed.split()]


def lines_of(path):
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


class Run:
    """A run in the background, and what is seen of it from outside."""

    def __init__(self, folder, *arguments):
        self.log = os.path.join(folder, "log.jsonl")
        self.process = subprocess.Popen([harness.PROGRAM, *RUN, "--log-file", self.log, *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.recoveries = []

    def going_on(self):
        return self.process.poll() is None

    def wait_for_lines(self, count, seconds):
        end = time.monotonic() + seconds
        while self.going_on() and lines_of(self.log) < count and time.monotonic() < end:
            time.sleep(0.002)
        return lines_of(self.log) >= count

    def kill(self, generator, count, waits):
        """The ranks that died, at most `count`."""
        victims = generator.sample(children(self.process.pid), k=min(count, len(children(self.process.pid))))
        for victim in victims:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        began, seen = time.monotonic(), lines_of(self.log)
        if not waits:
            return len(victims)
        # The one under way when the stroke came may be written yet.
        if victims and self.wait_for_lines(seen + 2, 60):
            self.recoveries.append(time.monotonic() - began)
        return len(victims)

    def result(self):
        out, err = self.process.communicate(timeout=120)
        found = re.search(r'"weights_hash":"([0-9a-f]+)"', out)
        return found[1] if found else f"exit code {self.process.returncode}: {err.strip()[-300:]}"


STRATEGIES = ["zero1", "zero2", "zero3", "hybrid", "pipeline"]


def one_run(generator, expected, strategies):
    strategy, ranks = generator.choice(strategies), generator.randint(3, 5)
    arguments = ["--parallel", strategy, "--ranks", str(ranks)]
    if strategy == "hybrid" and ranks == 4:
        arguments += ["--shard-group", "2"]
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        arguments += ["--checkpoints", os.path.join(folder, "run"), "--save-every", "5"]
        run = Run(folder, *arguments)
        while run.going_on() and not os.path.isdir(os.path.join(folder, "run", "step-00000005")):
            time.sleep(0.002)  # until there is a checkpoint to go back to
        while run.going_on() and killed < ranks - 1 and lines_of(run.log) < 32:
            time.sleep(generator.uniform(0.0, 0.15))
            again = generator.random() < 0.4  # while the others find together, or divide the state anew
            killed += run.kill(generator, 2 if generator.random() < 0.2 else 1, waits=not again)
            if again:
                time.sleep(generator.uniform(0.0, 0.02))
                killed += run.kill(generator, 1, waits=True)
        got = run.result()
    same = got == expected
    print(f"{strategy:8} {ranks} ranks, {killed} killed: {'the same weights' if same else 'BROKEN: ' + got}", flush=True)
    return same, killed, run.recoveries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--break", dest="wrong", action="store_true")
    parser.add_argument("--strategy", choices=STRATEGIES)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        expected = Run(folder, "--ranks", "1").result()
    if options.wrong:
        expected = expected[::-1]
    broken, kills, recoveries = 0, 0, []
    while kills < (6 if options.quick else options.kills):
        same, killed, took = one_run(generator, expected, [options.strategy] if options.strategy else STRATEGIES)
        broken += not same
        kills += max(1, killed)
        recoveries += took
        if options.wrong and broken:
            break
    if recoveries:
        print(f"{kills} killed, {broken} runs BROKEN; next step after {statistics.median(recoveries):.2f} s "
              f"(median, worst {max(recoveries):.2f})")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
