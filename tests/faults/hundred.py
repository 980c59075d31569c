#!/usr/bin/env python3
"""Proves: a hundred worker processes form one cluster, lose ten of them at one stroke, and write the same text.

The model has a hundred small layers, so every worker holds one. Prints the seconds until the cluster was ready, and
from the stroke until the next token.

    hundred.py [--workers 100] [--kill 10] [--quick] [--break]

--quick: twenty workers, two killed. --break compares with a wrong text: must fail.
"""

import argparse
import random
import signal
import time
from contextlib import ExitStack

import harness
import models
from harness import Generation, Worker, reference

LOAD = {"tokens": 60, "model": models.hundred_layers()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--kill", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    count, dying = (20, 2) if options.quick else (options.workers, options.kill)
    text = reference(**LOAD)
    if options.wrong:
        text = harness.wrong(text)
    with ExitStack() as stack:
        begin = time.monotonic()
        workers = [stack.enter_context(Worker("--memory", "64M")) for _ in range(count)]
        print(f"{count} workers listen after {time.monotonic() - begin:.1f} s", flush=True)
        run = stack.enter_context(Generation(workers, **LOAD))
        if not run.wait_for_bytes(20):
            print(f"BROKEN: no text: {run.errors()}")
            return 1
        print(f"first token {run.out[0][0] - run.started:.2f} s after the start of the coordinator", flush=True)
        victims = random.Random(options.seed).sample(workers, dying)
        struck = time.monotonic()
        for victim in victims:
            victim.signal(signal.SIGKILL)
        print(f"{dying} killed within {(time.monotonic() - struck) * 1000:.1f} ms (seed {options.seed})", flush=True)
        code = run.wait(180)
        for _, number, told in run.epochs():
            print(f"epoch {number}: {told}"[:300])
        pause = run.next_token_after(struck)
        same = code == 0 and run.text() == text
        told = "-" if pause is None else f"{pause:.2f}"
        print(f"exit code {code}, {'the same' if same else 'ANOTHER'} text, {told} s from the stroke to the next token")
        if not same:
            print(run.errors())
        dead = [w for w in workers if w not in victims and w.process.poll() is not None]
        for worker in dead:
            print(f"BROKEN: worker {worker.address}, which nobody killed, ended with {worker.process.returncode}: {worker.errors()}")
        if same and pause is None:
            print("BROKEN: the run had ended before the stroke")
        return not same or bool(dead) or pause is None


if __name__ == "__main__":
    harness.campaign(main)
