#!/usr/bin/env python3
"""Proves: cables that are pulled, plugged in again, shaken, or that carry between some nodes only, do not change the text.

    flap         a link goes away three times for less than the deadline (TCP backs off, so the silence may last longer)
    away         a link goes away for longer, and comes back: the worker is given up and taken back
    cut          the coordinator loses two of three workers for a while and goes on with one
    partition    two workers cannot reach each other although the coordinator reaches both
    one-way      a worker hears, but nobody hears it
    loss         every link loses 2 % of its packets
    rate         every link is throttled to 20 Mbit/s
    asleep       the coordinator itself stands still for four seconds

    network.py [--case NAME ...] [--break]

Needs root, iproute2 and nftables. --break compares with a wrong text: must fail.
"""

import argparse
import signal
import time

import harness
import models
from harness import Generation, Hang, Worker, reference
from netlab import Lab

LOAD = {"tokens": 200, "model": models.slow_to_load()}
NODES = 3
DEADLINE_S = 1.5


def flap(lab, run):
    for _ in range(3):
        lab.link_down(1)
        time.sleep(0.4)
        lab.link_up(1)
        time.sleep(0.4)


def away(lab, run):
    lab.link_down(1)
    time.sleep(DEADLINE_S + 0.7)
    lab.link_up(1)


def cut(lab, run):
    lab.partition([NODES], [0, 1])
    time.sleep(4)
    lab.heal()


def partition(lab, run):
    lab.partition([0], [1])


def one_way(lab, run):
    lab.deafen([0, 2, NODES], 1)


def loss(lab, run):
    for node in range(NODES + 1):
        lab.set_loss(node, 2)


def rate(lab, run):
    for node in range(NODES + 1):
        lab.set_rate(node, "20mbit")


def asleep(lab, run):
    run.signal(signal.SIGSTOP)
    time.sleep(4)
    run.signal(signal.SIGCONT)


# The epochs after the first that each may have; None: any number.
CASES = {"flap": (flap, None), "away": (away, None), "cut": (cut, None), "partition": (partition, None),
         "one-way": (one_way, None), "loss": (loss, 0), "rate": (rate, 0), "asleep": (asleep, 0)}


def attempt(name, text):
    """Sentences about what was broken."""
    fault, epochs_max = CASES[name]
    with Lab(NODES + 1, loss=True) as lab:
        workers = [Worker(listen=f"{lab.address(i)}:7000", namespace=lab.name(i)) for i in range(NODES)]
        try:
            with Generation(workers, namespace=lab.name(NODES), **LOAD) as run:
                run.wait_for_bytes(20)
                begun = time.monotonic()
                fault(lab, run)
                code = run.wait()
                later = [(at, number, told) for at, number, told in run.epochs() if number > 1]
                print(f"{name}: exit code {code}, {'same' if run.text() == text else 'ANOTHER'} text, longest pause {run.longest_pause():.2f} s, "
                      f"{len(later)} later epochs", flush=True)
                for at, line in run.lines:
                    if at > begun and ("went away" in line or "epoch" in line or line.startswith("butterfly")):
                        print(f"    {at - begun:.2f} s: {line[:200]}")
                broken = [] if code == 0 and run.text() == text else [f"{name}: exit code {code}, {run.errors()}"]
                if epochs_max is not None and len(later) > epochs_max:
                    broken.append(f"{name}: a worker was given up that lived")
                return broken
        except Hang as hang:
            return [f"{name}: HANG: {hang}"]
        finally:
            for worker in workers:
                worker.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="*", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    text = reference(**LOAD)
    broken = []
    for name in options.case:
        broken += attempt(name, harness.wrong(text) if options.wrong else text)
    for sentence in broken:
        print(f"BROKEN: {sentence}")
    return len(broken)


if __name__ == "__main__":
    harness.campaign(main)
