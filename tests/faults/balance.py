#!/usr/bin/env python3
"""Proves: a tensor group over nodes of unlike speed is balanced within 5 %, as planned, as simulated and as measured.

Shares are multiples of 1/32, so groups of 3, 5, 7 and 12 nodes get speeds that are such multiples: what is left is what
is not divided (norms, sums of others, kernels that are handed out) and what is divided wrongly. For each group the
slices of the plan, the least over the greatest node time (load_balance_factor) of plan and simulation; with --measure
workers are throttled to these speeds (--emulate), run that plan with a model four times as large, and what each computed
is compared, too: the processor time of its thread in the steps, divided by its speed. All of them share one core, since
two that compute at once would share the memory's rate, which machines do not. Not measured is who else had that core:
how long the workers stood in the queue for it is told beside, in seconds for each second that they ran. Nor is how well
workers measure their own speed. Then speeds drawn at random: what is planned beside the best that whole
slices allow, and beside shares of any size.

    balance.py                     planned and simulated, in seconds
    balance.py --measure           also workers; --cores is what all of them may use of this machine together
    balance.py --break             a plan of equal shares: must fail

Exit code 0: all held; 1: not.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager

import harness
import models
from harness import PROGRAM, Worker

# In 32nds. A share of one slice has what is not divided too often beside it.
SPEEDS = {3: (16, 10, 6), 5: (10, 8, 6, 5, 3), 7: (8, 6, 5, 4, 4, 3, 2), 12: (4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2)}
LEAST = 0.95
SLACK = 1.001  # of a plan over the bound of whole slices, where exchanges cost nothing
TIMEOUT_S = 900


def cluster_file(folder, speeds):
    """Nodes of one kind at a part of its speed, and links that cost next to nothing."""
    path = os.path.join(folder, "cluster.toml")
    with open(path, "w", encoding="ascii") as out:
        for i, speed in enumerate(speeds):
            out.write(f'[[node]]\nname = "n{i}"\nmemory = "64 GiB"\nmemory_gb_per_s = {40 * speed}\nfp32_gflops = {400 * speed}\n\n')
        out.write("[links.default]\nlatency_us = 1\ngb_per_s = 100\n")
    return path


def custom_file(folder, layers, slices, names):
    path = os.path.join(folder, "custom.txt")
    first = 0
    with open(path, "w", encoding="ascii") as out:
        for name, count in zip(names, slices):
            out.write(f"{name} 0-{layers - 1} slices {first}-{first + count - 1}\n")
            first += count
    return path


def run_json(*words):
    run = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                         env={**os.environ, "BUTTERFLY_HOME": os.devnull})
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words[:3]))}: {run.stderr.strip()[-2000:]}")
    return json.loads(run.stdout)


def equal(count):
    return [32 * (i + 1) // count - 32 * i // count for i in range(count)]


def planned(model, where, split):
    """(slices, balance, simulated balance, the plan)"""
    told = run_json("plan", "-m", model, *where, *split, "--context", 128, "--json", "--simulate", "--requests", 8,
                    "--generate", 32)
    plan, busy = told["plan"], told["simulation"]["utilisation"].values()
    slices = [share["last_slice"] - share["first_slice"] + 1 for share in plan["shares"]]
    return slices, plan["load_balance_factor"], min(busy) / max(busy), plan


def on_cores(workers):
    """Seconds that all threads of these processes ran, and that they waited for a core."""
    ran = waited = 0
    for worker in workers:
        tasks = f"/proc/{worker.process.pid}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat", encoding="ascii") as stat:
                run, wait, _ = map(int, stat.read().split())
            ran, waited = ran + run * 1e-9, waited + wait * 1e-9
    return ran, waited


@contextmanager
def on_one_core():
    """Processes that begin meanwhile have the last of the cores that this one may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measured(model, speeds, slices, options, folder):
    """How busy workers of these speeds are with these slices, least over greatest; what they waited for cores."""
    unit = options.cores / sum(speeds)
    with on_one_core(), ExitStack() as stack:
        workers = [stack.enter_context(Worker("--emulate", f"{unit * speed:.5f}")) for speed in speeds]
        addresses = [worker.address for worker in workers]
        told = run_json("generate", "-m", model, "-p", harness.PROMPT, "-n", options.tokens, "-t", 1, *harness.SAMPLING,
                        "--workers", ",".join(addresses), "--split", "custom",
                        "--custom", custom_file(folder, models.EVEN_LAYERS, slices, addresses), "--json")
        ran, waited = on_cores(workers)
        return told["load_balance_factor"], waited / ran


def proportional(options, folder):
    """Groups whose speeds are multiples of 1/32. How many fell short."""
    model, failed = models.even_slices(4096 if options.measure else 2048), 0
    print(f"speeds that are multiples of 1/32, {os.path.basename(model)}; balance is the least over the greatest node time")
    for count in options.nodes:
        speeds = SPEEDS[count]
        split = ("--split", "tensor")
        if options.wrong:
            split = ("--split", "custom", "--custom",
                     custom_file(folder, models.EVEN_LAYERS, equal(count), [f"n{i}" for i in range(count)]))
        where = ("--cluster", cluster_file(folder, [speed / 32 for speed in speeds]))
        slices, balance, simulated, _ = planned(model, where, split)
        figures = {"planned": balance, "simulated": simulated}
        note = ""
        if options.measure:
            figures["measured"], waited = measured(model, speeds, slices, options, folder)
            note = f"; {waited:.1f} s in the queue for a core for each that they ran, load {os.getloadavg()[0]:.0f}"
        held = all(value >= LEAST for value in figures.values())
        failed += not held
        print(f"{'ok' if held else 'BROKEN'}: {count} nodes of {list(speeds)}, slices {slices}: "
              + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()) + note, flush=True)
    return failed


def arbitrary(options, folder):
    """Speeds of no kind: the plan reaches the best that whole slices allow."""
    failed, dice = 0, random.Random(options.seed)
    print("\nspeeds drawn at random, from 0.25 to 1; the slowest node's time beside the bounds")
    for shape, kind in (("llama-2-7b", "q4_0"), ("qwen3-30b-a3b", "q4_0")):
        for count in options.nodes:
            speeds = [dice.uniform(0.25, 1.0) for _ in range(count)]
            where = ("--cluster", cluster_file(folder, speeds), "--type", kind)
            _, balance, _, plan = planned(shape, where, ("--split", "tensor"))
            over = plan["slowest_s"] / plan["division_bound_s"]
            held = over <= SLACK
            failed += not held
            print(f"{'ok' if held else 'BROKEN'}: {shape} over {count} nodes: balance {balance:.3f}, slowest "
                  f"{plan['slowest_s'] * 1e3:.2f} ms, whole slices allow {plan['division_bound_s'] * 1e3:.2f} ms, any size "
                  f"{plan['any_size_bound_s'] * 1e3:.2f} ms ({100 * plan['slowest_s'] / plan['any_size_bound_s'] - 100:.1f} % "
                  "of it is rounding)", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", choices=sorted(SPEEDS), default=sorted(SPEEDS))
    parser.add_argument("--measure", action="store_true", help="also over throttled workers")
    parser.add_argument("--cores", type=float, default=0.4, help="of one core, for all workers together")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--break", dest="wrong", action="store_true", help="plans of equal shares: must fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failed = proportional(options, folder)
        if not options.wrong:
            failed += arbitrary(options, folder)
    print("all held" if failed == 0 else f"{failed} did not hold")
    return failed


if __name__ == "__main__":
    harness.campaign(main)
