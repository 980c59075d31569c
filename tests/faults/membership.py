#!/usr/bin/env python3
"""Proves: workers come and go during a generation, on purpose or not, and the text does not show it.

    a worker that joins takes a share of the layers         a worker that is sent SIGTERM leaves in peace, with exit code 0
    a worker that was there first waits for a coordinator   after the last worker died the next one to join goes on
    a killed worker that starts again is taken back         so is one that was stopped and goes on
    membership.py [--quick] [--break]

Prints for each the longest silence between two pieces of text. --break compares with a wrong text: must fail.
"""

import argparse
import re
import signal
import time

import harness
import models
from harness import Generation, Hang, Worker, free_ports, program_offers, reference

LOAD = {"tokens": 200, "model": models.slow_to_load()}
QUICK_LOAD = {"tokens": 600, "model": models.quick_to_load()}


class Broken(Exception):
    """A promise was not kept."""


def must(holds, sentence, run):
    if not holds:
        raise Broken(f"{sentence}\n{run.errors()}")


def finish(run, text):
    code = run.wait()
    must(code == 0, f"exit code {code}", run)
    must(run.text() == text, f"the text differs ({len(run.text())} bytes, expected {len(text)})", run)


def layers_of(run, worker):
    """How many layers the last summary gives to a worker."""
    for _, line in reversed(run.lines):
        if m := re.search(re.escape(worker.address) + r"\s+layers (\d+)-(\d+)", line):
            return int(m[2]) - int(m[1]) + 1
    return 0


def next_epoch(run, after, count):
    """Waits for an epoch beyond `after` with `count` workers, and for a token of it."""
    found = run.wait_for(rf"\bepoch (?!{after}:)\d+: {count} workers?\b.*\bready\b")
    must(found, f"no epoch with {count} workers", run)
    run.wait_for_bytes(len(run.text()) + 1)
    return int(re.search(r"epoch (\d+)", found[1].string)[1])


def a_worker_joins_and_takes_a_share(text):
    join_at = f"127.0.0.1:{free_ports(1)[0]}"
    with Worker() as a, Worker() as b, Generation([a, b], options=("--join-at", join_at), **LOAD) as run:
        run.wait_for_bytes(20)
        with Worker("--join", join_at) as newcomer:
            next_epoch(run, 1, 3)
            finish(run, text)
            must(layers_of(run, newcomer) > 0, "the newcomer has no layers", run)
    return run


def a_drained_worker_leaves(text):
    with Worker() as a, Worker() as b, Worker() as c, Generation([a, b, c], **LOAD) as run:
        run.wait_for_bytes(20)
        asked = b.signal(signal.SIGTERM)
        next_epoch(run, 1, 2)
        code = b.wait()
        must(code == 0, f"the drained worker ended with {code}: {b.errors()}", run)
        must(b.ended - asked < 20, f"draining took {b.ended - asked:.1f} s", run)
        must(not run.out or run.process.poll() is None, "the generation was over before the worker had left", run)
        finish(run, text)
    return run


def one_comes_while_another_leaves(text):
    join_at = f"127.0.0.1:{free_ports(1)[0]}"
    with Worker() as a, Worker() as b, Generation([a, b], options=("--join-at", join_at), **LOAD) as run:
        run.wait_for_bytes(20)
        with Worker("--join", join_at) as newcomer:
            b.signal(signal.SIGTERM)
            finish(run, text)
            must(b.wait() == 0, "the drained worker did not end with 0", run)
            must(layers_of(run, newcomer) > 0, "the newcomer has no layers", run)
    return run


def a_worker_waits_for_its_coordinator(text):
    """Before there is one, and again after it went away."""
    join_at = f"127.0.0.1:{free_ports(1)[0]}"
    with Worker("--join", join_at) as newcomer, Worker() as a:
        time.sleep(0.5)
        for _ in range(2):
            with Generation([a], options=("--join-at", join_at), **LOAD) as run:
                must(run.wait_for(r"\bepoch \d+: 2 workers.*\bready\b|\b2 of 2 workers ready"), "no epoch with 2 workers", run)
                finish(run, text)
                must(layers_of(run, newcomer) > 0, "the newcomer has no layers", run)
    return run


def a_killed_worker_that_starts_again_is_taken_back(text):
    with Worker() as a, Worker() as b, Generation([a, b], **LOAD) as run:
        run.wait_for_bytes(20)
        b.signal(signal.SIGKILL)
        next_epoch(run, 1, 1)
        with Worker(listen=b.address) as again:
            next_epoch(run, 1, 2)
            finish(run, text)
            must(layers_of(run, again) > 0, "the worker that came back has no layers", run)
    return run


def a_stopped_worker_that_goes_on_is_taken_back(text):
    with Worker() as a, Worker() as b, Generation([a, b], **LOAD) as run:
        run.wait_for_bytes(20)
        b.signal(signal.SIGSTOP)
        next_epoch(run, 1, 1)
        b.signal(signal.SIGCONT)
        next_epoch(run, 1, 2)
        finish(run, text)
    return run


def the_next_one_goes_on_after_the_last_one_died(text):
    join_at = f"127.0.0.1:{free_ports(1)[0]}"
    with Worker() as only, Generation([only], options=("--join-at", join_at, "--recover-within", "30"), **LOAD) as run:
        run.wait_for_bytes(20)
        only.signal(signal.SIGKILL)
        time.sleep(0.5)
        with Worker("--join", join_at):
            finish(run, text)
    return run


CASES = (a_drained_worker_leaves, a_worker_joins_and_takes_a_share, one_comes_while_another_leaves,
         a_killed_worker_that_starts_again_is_taken_back, a_stopped_worker_that_goes_on_is_taken_back,
         a_worker_waits_for_its_coordinator, the_next_one_goes_on_after_the_last_one_died)
QUICK = CASES[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    if not program_offers("worker", "--join"):
        raise harness.Skip("this butterfly has no worker --join")
    if options.quick:
        LOAD.update(QUICK_LOAD)
    text = reference(**LOAD)
    if options.wrong:
        text = harness.wrong(text)
    broken = 0
    for case in (CASES[:1] if options.wrong else QUICK if options.quick else CASES) * options.runs:
        name = case.__name__.replace("_", " ")
        try:
            run = case(text)
            epochs = "; ".join(f"epoch {number}: {told}" for _, number, told in run.epochs())
            print(f"{name}: same text, longest pause {run.longest_pause():.3f} s ({epochs})", flush=True)
        except (Broken, Hang, RuntimeError) as reason:
            broken += 1
            print(f"BROKEN: {name}: {reason}", flush=True)
    return broken


if __name__ == "__main__":
    harness.campaign(main)
