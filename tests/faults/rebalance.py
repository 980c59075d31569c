#!/usr/bin/env python3
"""Proves: layers move away from a worker that becomes slow, by themselves or when a user asks, and the text stays.

Three workers with --split balanced; during the generation the first becomes four times slower. It is stopped three quarters
of the time, in turns that are shorter than a step: a limit on its CPU would slow it by more the more layers it has.

    by itself     measured stage times straggler from the plan: another epoch follows, and no more than --epochs of them
    when asked    `butterfly cluster rebalance` says which layers move, before the straggler is certain
    uniform       has nothing to balance, and says so

    rebalance.py [--quick] [--break]
"""

import argparse
import re
import subprocess
import time
from contextlib import ExitStack

import harness
import models
from harness import PROGRAM, Generation, Hang, Worker, reference
from slow_link import duty_cycle

WORKERS = 3
SHARE, PERIOD_S = 0.25, 0.02
LOAD = {"tokens": 600, "model": models.quick_to_load()}
ASKED_S = 30  # the command has to answer within


class Broken(Exception):
    """A promise that was not kept."""


class Running:
    """A generation over fresh workers that has begun to write, its first worker slowed since then."""

    def __init__(self, stack, options, split):
        self.workers = [stack.enter_context(Worker()) for _ in range(WORKERS)]
        self.run = stack.enter_context(Generation(self.workers, options=("--split", split, "--join-at", "127.0.0.1:0"), **LOAD))
        found = self.run.wait_for(r"workers may join at (\S+)")
        if not found or not self.run.wait_for_bytes(1):
            raise Broken(f"the generation did not begin:\n{self.run.errors()}")
        self.address = found[1][1]
        if split == "balanced":
            print(stack.enter_context(duty_cycle(self.workers[0].pid, SHARE, PERIOD_S)), flush=True)
            self.slow_since = time.monotonic()

    def ask(self):
        """(exit code, what it said)."""
        asked = subprocess.run([PROGRAM, "cluster", "rebalance", self.address], capture_output=True, text=True, timeout=ASKED_S, check=False)
        return asked.returncode, (asked.stdout + asked.stderr).strip()

    def shares(self):
        """{address: layers} at the end, as the summary tells."""
        found = [re.match(r"\s+(\S+:\d+)\s+layers (\d+)-(\d+)", line) for _, line in self.run.lines]
        return {m[1]: int(m[3]) - int(m[2]) + 1 for m in found if m}

    def finish(self, text, epochs_max):
        if self.run.wait(240) != 0:
            raise Broken(f"the generation failed:\n{self.run.errors()}")
        if self.run.text() != text:
            raise Broken("ANOTHER text")
        epochs = self.run.epochs()
        if len(epochs) > epochs_max:
            raise Broken(f"{len(epochs)} epochs followed the first, at most {epochs_max} were expected:\n{self.run.errors()}")
        return epochs


def by_itself(options, text):
    with ExitStack() as stack:
        running = Running(stack, options, "balanced")
        found = running.run.wait_for(r"(worker \S+) needs ([0-9.]+) times as long as planned; (.*)", 120)
        if not found:
            raise Broken(f"the generation ended without another plan:\n{running.run.errors()}")
        epochs = running.finish(text, options.epochs)
        shares = running.shares()
        if shares.get(running.workers[0].address, 0) > min(shares.values()):
            raise Broken(f"the slow worker {running.workers[0].address} does not have the smallest share: {shares}")
        return f"noticed after {found[0] - running.slow_since:.1f} s: {found[1][0]}; {len(epochs)} epochs followed the first"


def when_asked(options, text):
    with ExitStack() as stack:
        running = Running(stack, options, "balanced")
        answers = []
        while running.run.process.poll() is None:
            code, said = running.ask()
            answers.append(said)
            if code == 0 and "(before: " in said:
                break
            time.sleep(0.2)
        else:
            raise Broken(f"no layer moved, the answers were {answers}")
        epochs = running.finish(text, options.epochs)
        if not epochs:
            raise Broken(f"no epoch followed the answer {answers[-1]}")
        return f"answer {len(answers)}: {answers[-1]}; {len(epochs)} epochs followed the first"


def uniform(options, text):
    with ExitStack() as stack:
        running = Running(stack, options, "uniform")
        code, said = running.ask()
        if code != 2 or "nothing to balance" not in said:
            raise Broken(f"exit code {code}: {said}")
        if running.finish(text, 0):
            raise Broken("an epoch followed")
        return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ask and be refused; no bound on epochs")
    parser.add_argument("--epochs", type=int, default=2, help="at most, after the first")
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.epochs = 20
    text = reference(options=("-t", "1"), **LOAD)
    if options.wrong:
        text = harness.wrong(text)
    broken = 0
    for case in (uniform,) if options.wrong else (uniform, when_asked) if options.quick else (uniform, when_asked, by_itself):
        name = case.__name__.replace("_", " ")
        try:
            print(f"{name}: same text; {case(options, text)}", flush=True)
        except (Broken, Hang, RuntimeError) as reason:
            broken += 1
            print(f"BROKEN: {name}: {reason}", flush=True)
    return broken


if __name__ == "__main__":
    harness.campaign(main)
