#!/usr/bin/env python3
"""Proves: a run of training whose ranks hold parts of its state ends with the weights of the undisturbed run, whichever
ranks are killed whenever: at one stroke or one after the other, in a step, while the others find together, while they
save; and also where ranks are workers that join the run meanwhile. Where a rank and its mirror die at one stroke, or
rank 0 does, the run goes back to its checkpoint.

Prints for each run what was killed and the hash, at the end the kills and how long it took until the next step (median,
worst; from the stroke, with the rest of that step), apart from the others where rank 0 was killed.

    training_kills.py [--kills 100] [--seed N] [--strategy NAME] [--quick] [--break]

--quick: 6 kills. --strategy: runs with this one alone. --break compares with wrong weights: must fail.
"""

import argparse
import functools
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

RUN = ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--seq", "32", "--batch",
       "12", "--micro-batch", "1", "--threads", "1", "--deterministic", "true", "--json"]
SAVES = ["--save-every", "5", "--max-restarts", "1000"]
RANK_0_KILLS = 3  # of one run, which goes back each time


STRATEGIES = ["zero1", "zero2", "zero3", "hybrid", "pipeline"]
STEPS, OPEN_STEPS = 40, 120  # those that ranks join are longer: a worker is not there at once


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

    def __init__(self, folder, *arguments, steps=STEPS):
        self.log = os.path.join(folder, "log.jsonl")
        self.said = open(os.path.join(folder, "said"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([harness.PROGRAM, *RUN, "--steps", str(steps), "--log-file", self.log, *arguments],
                                        stdout=subprocess.PIPE, stderr=self.said, text=True)
        self.recoveries, self.restarts = [], []
        self.rank_0_killed = 0
        self.heard_at_end = ""

    def rank_0(self):
        """Its process, where it is there and may be killed once more, as a list."""
        return children(self.process.pid) if self.rank_0_killed < RANK_0_KILLS else []

    def ranks(self):
        """The others' processes."""
        return [rank for leader in children(self.process.pid) for rank in children(leader)]

    def heard(self):
        self.said.flush()
        with open(self.said.name, encoding="utf-8") as file:
            return file.read()

    def going_on(self):
        return self.process.poll() is None

    def wait_for_lines(self, count, seconds):
        end = time.monotonic() + seconds
        while self.going_on() and lines_of(self.log) < count and time.monotonic() < end:
            time.sleep(0.002)
        return lines_of(self.log) >= count

    def kill(self, generator, count, waits):
        """The ranks that died, at most `count`."""
        rank_0 = self.rank_0()
        ranks = self.ranks() + rank_0
        victims = generator.sample(ranks, k=min(count, len(ranks)))
        self.rank_0_killed += len(set(victims) & set(rank_0))
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
            (self.restarts if set(victims) & set(rank_0) else self.recoveries).append(time.monotonic() - began)
        return len(victims)

    def result(self):
        out, _ = self.process.communicate(timeout=120)
        found = re.search(r'"weights_hash":"([0-9a-f]+)"', out)
        self.heard_at_end = self.heard()
        self.said.close()
        return found[1] if found else f"exit code {self.process.returncode}: {self.heard_at_end.strip()[-3000:]}"


class OpenRun(Run):
    """One that begins alone, and whose other ranks are workers that join it."""

    def __init__(self, folder, *arguments):
        super().__init__(folder, "--join-at", f"127.0.0.1:{harness.free_ports(1)[0]}", *arguments, steps=OPEN_STEPS)
        self.workers, self.joined = [], 0
        self.door = None
        end = time.monotonic() + 60
        while self.going_on() and self.door is None and time.monotonic() < end:
            found = re.search(r"may join at (\S+)", self.heard())
            self.door = found[1] if found else None
            time.sleep(0.005)

    def join(self):
        command = [harness.PROGRAM, "worker", "--listen", "127.0.0.1:0", "--join", str(self.door), "--threads", "1"]
        self.workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self.joined += 1

    def wait_for_another(self, seconds):
        """Until one more has joined."""
        joined, end = self.heard().count("which joins"), time.monotonic() + seconds
        while self.going_on() and self.heard().count("which joins") == joined and time.monotonic() < end:
            time.sleep(0.01)

    def ranks(self):
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        return [worker.pid for worker in self.workers]

    def result(self):
        result = super().result()
        for worker in self.workers:
            worker.kill()
            worker.wait()
        return result


def wait_for_checkpoint(run, folder):
    """One to go back to."""
    while run.going_on() and not os.path.isdir(os.path.join(folder, "run", "step-00000005")):
        time.sleep(0.002)


def one_run(generator, expected, strategies):
    strategy, ranks = generator.choice(strategies), generator.randint(3, 5)
    arguments = ["--engine", "tcp", "--parallel", strategy, "--ranks", str(ranks)]
    if strategy == "hybrid" and ranks == 4:
        arguments += ["--shard-group", "2"]
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder, *arguments, "--checkpoints", os.path.join(folder, "run"), *SAVES)
        wait_for_checkpoint(run, folder)
        while run.going_on() and (run.ranks() or run.rank_0()) and lines_of(run.log) < 32:
            time.sleep(generator.uniform(0.0, 0.15))
            again = generator.random() < 0.4  # while the others find together, or divide the state anew
            killed += run.kill(generator, 2 if generator.random() < 0.2 else 1, waits=not again)
            if again:
                time.sleep(generator.uniform(0.0, 0.02))
                killed += run.kill(generator, 1, waits=True)
        got = run.result()
    same = got == expected
    print(f"{strategy:8} {ranks} ranks, {killed} killed, {run.rank_0_killed} of them rank 0: "
          f"{'the same weights' if same else 'BROKEN: ' + got}", flush=True)
    return same, killed, run


def one_open_run(generator, expected, strategies):
    """Ranks join and are killed all the time, also while others join."""
    strategy, killed = generator.choice(strategies), 0
    with tempfile.TemporaryDirectory() as folder:
        run = OpenRun(folder, "--parallel", strategy, "--checkpoints", os.path.join(folder, "run"), *SAVES)
        for _ in range(3):
            run.join()
        wait_for_checkpoint(run, folder)
        while run.going_on() and lines_of(run.log) < OPEN_STEPS - 8:
            if len(run.ranks()) < 2 or (len(run.ranks()) < 5 and generator.random() < 0.6):
                run.join()
            if generator.random() < 0.6:
                run.wait_for_another(2)
            time.sleep(generator.uniform(0.0, 0.3))
            if generator.random() < 0.6:
                killed += run.kill(generator, 2 if generator.random() < 0.2 else 1, waits=generator.random() < 0.5)
        got = run.result()
        epochs = len(re.findall("which joins", run.heard_at_end))
    same = got == expected
    print(f"{strategy:8} {run.joined} workers, {epochs} joined, {killed} killed, {run.rank_0_killed} of them rank 0: "
          f"{'the same weights' if same else 'BROKEN: ' + got}", flush=True)
    return same, killed, run


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

    @functools.cache
    def expected(steps):
        with tempfile.TemporaryDirectory() as folder:
            undisturbed = Run(folder, "--ranks", "1", steps=steps).result()
        return undisturbed[::-1] if options.wrong else undisturbed

    broken, kills, turn, recoveries, restarts = 0, 0, 0, [], []
    while kills < (6 if options.quick else options.kills):
        strategies = [options.strategy] if options.strategy else STRATEGIES
        same, killed, run = (one_run(generator, expected(STEPS), strategies) if turn % 2 == 0 else
                              one_open_run(generator, expected(OPEN_STEPS), strategies if options.strategy else [*strategies, "ddp"]))
        broken, turn = broken + (not same), turn + 1
        kills += max(1, killed)
        recoveries += run.recoveries
        restarts += run.restarts
        if options.wrong and broken:
            break
    print(f"{kills} killed, {broken} runs BROKEN")
    for what, took in (("others than rank 0", recoveries), ("rank 0", restarts)):
        if took:
            print(f"after {what}: next step after {statistics.median(took):.2f} s (median, worst {max(took):.2f})")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
