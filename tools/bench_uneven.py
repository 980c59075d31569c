#!/usr/bin/env python3
"""Measures what ranks of unlike speed reach together: one has a share of a CPU, the other a whole one.

    python3 tools/bench_uneven.py [--share 0.333] [--throttle busy|quota] [--strategies ddp,zero1] [--rounds 3] [--steps 30] [--warm 10] [--micro-batch 1] [--mirror 1] [--told]

Beside each other, and as two ranks of one run, in turns: a process of one thread, and a worker of one thread that has
--share of a CPU. `--throttle busy` gives each its own CPU and lets busy loops take the rest of the worker's, which loses
the time in which it waits, as a slower machine does. `quota` is a control group's, as containers have (as root): what is
not used while it waits can be used later in the same tenth of a second. Rates are tokens over time of the steps
after the first --warm, in which ranks are divided by speed; a ratio is the run's rate over the sum of the two that train
alone. Ranks see for themselves how fast they are; with --told they are told (--parallel.speeds). For a pipeline its bubble
is printed beside the one that was predicted.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/faults"))
import harness  # noqa: E402
from slow_link import group_with  # noqa: E402

@contextlib.contextmanager
def busy_beside(process, share):
    """On the last CPU, with as many busy loops as leave the process that share."""
    cpu = max(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        os.sched_setaffinity(int(thread), {cpu})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
             for _ in range(round(1 / share) - 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def throttled(process, options):
    return group_with(process.pid, options.share) if options.throttle == "quota" else busy_beside(process, options.share)


def start_on_first_cpu(command):
    cpu = min(os.sched_getaffinity(0))
    return start(command, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))


def command_of(options, batch, log, *more):
    return [harness.PROGRAM, "train", "--model", options.model, "--data", "synthetic:markov", "--seq", str(options.seq),
            "--micro-batch", str(options.micro_batch), "--batch", str(batch), "--threads", "1", "--steps", str(options.steps), "--log-file", log,
            "--log", "silent", "--json", *more]


def rate_of(log, options):
    """Tokens/s of the steps that count."""
    with open(log, encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line["event"] == "step" and line["step"] >= options.warm]
    return sum(step["tokens"] for step in steps) / sum(step["step_time"] for step in steps)


def result_of(process):
    out, err = process.communicate(timeout=3600)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(process.args)}: {err[-500:]}")
    return json.loads(out)


def start(command, **more):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def alone(options, folder):
    """Tokens/s of both, each on its own model, at the same time and for about as long."""
    logs = [os.path.join(folder, name) for name in ("fast", "slow")]
    micro_batches = options.batch // options.micro_batch
    slow_batch = options.micro_batch * max(1, round(micro_batches * options.share / (1 + options.share)))
    fast = start_on_first_cpu(command_of(options, options.batch - slow_batch, logs[0]))
    slow = start(command_of(options, slow_batch, logs[1]))
    with throttled(slow, options):
        for process in (fast, slow):
            result_of(process)
    return [rate_of(log, options) for log in logs]


def wait_until_it_listens(address):
    host, port = address.split(":")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)


def together(options, folder, strategy):
    """Tokens/s of the run, and its result."""
    log = os.path.join(folder, strategy)
    address = f"127.0.0.1:{harness.free_ports(1)[0]}"
    worker = subprocess.Popen([harness.PROGRAM, "worker", "--listen", address, "--threads", "1"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    wait_until_it_listens(address)
    more = ["--parallel.speeds", f"1,{options.share}"] if options.told else []
    if strategy != "ddp":
        more += ["--mirror", str(options.mirror)]
    try:
        with throttled(worker, options):
            result = result_of(start_on_first_cpu(command_of(options, options.batch, log, "--workers", address, "--parallel",
                                                             strategy, *more)))
    finally:
        worker.kill()
        worker.wait()
    return rate_of(log, options), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tinytransformer-small")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--mirror", type=int, default=1)
    parser.add_argument("--share", type=float, default=1 / 3)
    parser.add_argument("--throttle", choices=("busy", "quota"), default="busy")
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--strategies", default="ddp,zero1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm", type=int, default=10)
    options = parser.parse_args()
    strategies = options.strategies.split(",")
    ratios, told = {strategy: [] for strategy in strategies}, {}
    for _ in range(options.rounds):
        for strategy in strategies:
            with tempfile.TemporaryDirectory() as folder:
                rates = alone(options, folder)
                rate, told[strategy] = together(options, folder, strategy)
            ratios[strategy].append(rate / sum(rates))
            print(f"{strategy:8} {rate:7.1f} tokens/s together, alone {rates[0]:.1f} and {rates[1]:.1f}", flush=True)
    for strategy in strategies:
        bubble = told[strategy].get("bubble_measured")
        print(f"{strategy:8} {statistics.median(ratios[strategy]):.3f} of the sum ({min(ratios[strategy]):.3f} to "
              f"{max(ratios[strategy]):.3f})" + ("" if not bubble else f", bubble {bubble:.3f}, predicted "
                                                 f"{told[strategy]['bubble_predicted']:.3f}"))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
