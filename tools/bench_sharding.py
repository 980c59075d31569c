#!/usr/bin/env python3
"""Measures what the strategies of training over ranks cost: step time, bytes that each rank sends, memory of each.

    tools/bench_sharding.py [--model gpt2-124m] [--ranks 4] [--engine tcp] [--seq 128] [--micro-batch 1] [--rounds 3]
                            [--steps 6] [--strategies ddp,zero1,zero2,zero3] [--mirror 0] [--precision fp32]

Strategies take turns, each once a round; medians over rounds. Each rank computes one micro-batch of a step. Memory is
what the kernel counts of each process: the median and the peak of the ranks' resident sets, less what a process of the
program has without a model (with threads: of all ranks together). Beside it, what the formula says of the state: 16
bytes of each parameter for ddp, 8 + 8/n, 4 + 12/n, 16/n. Bytes are beside k = (n-1)/n of the parameters' bytes.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("BUTTERFLY_PROGRAM", str(ROOT / "build/release/bin/butterfly"))
STATE = {"ddp": lambda n: 16, "zero1": lambda n: 8 + 8 / n, "zero2": lambda n: 4 + 12 / n, "zero3": lambda n: 16 / n}
MIB = 1 << 20


def status_bytes(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(rf"{field}:\s+(\d+)", file.read())[1]) * 1024


class Memory(threading.Thread):
    """Resident sets of a process and its children, until it ends."""

    def __init__(self, process):
        super().__init__()
        self.process, self.seen, self.peaks = process, {}, {}

    def run(self):
        while self.process.poll() is None:
            children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
            for pid in [self.process.pid, *children.stdout.split()]:
                try:
                    self.seen.setdefault(pid, []).append(status_bytes(pid, "VmRSS"))
                    self.peaks[pid] = status_bytes(pid, "VmHWM")
                except (OSError, TypeError):
                    pass  # it has ended
            time.sleep(0.02)


def base_bytes():
    """Of a process that does nothing."""
    process = subprocess.Popen([PROGRAM, "worker", "--listen", "127.0.0.1:0", "--insecure"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(1)
    try:
        return status_bytes(process.pid, "VmRSS")
    finally:
        process.terminate()
        process.wait()


def run(options, strategy):
    command = [PROGRAM, "train", "--model", options.model, "--data", "synthetic:markov", "--steps", str(options.steps),
               "--seq", str(options.seq), "--batch", str(options.ranks * options.micro_batch), "--micro-batch",
               str(options.micro_batch), "--threads", "1", "--parallel", strategy, "--ranks", str(options.ranks),
               "--engine", options.engine, "--mirror", str(options.mirror), "--precision", options.precision, "--json",
               *options.more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory = Memory(process)
    memory.start()
    out, err = process.communicate()
    memory.join()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {err[-500:]}")
    result = json.loads(out)
    summary = result.get("summary", result)
    medians = [statistics.median(values) for values in memory.seen.values()]
    return {"step_s": summary["avg_step_time"],
            "sent": summary["network_kb_per_s"] * 1000 * summary["avg_step_time"],
            "median": statistics.median(medians), "peak": statistics.median(memory.peaks.values())}


def parameters_of(options):
    text = subprocess.run([PROGRAM, "plan", "-m", options.model, "--train", "--world-size", "1", "--memory-gb-per-s", "10",
                           "--fp32-gflops", "100", "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(text)["training"]["ddp"]["nodes"][0]["weight_bytes"] // 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--engine", default="tcp", choices=["tcp", "inproc"])
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--strategies", default="ddp,zero1,zero2,zero3")
    parser.add_argument("--mirror", type=int, default=0)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("more", nargs="*", help="more flags of `butterfly train`, after --")
    options = parser.parse_args()
    base, parameters, n = base_bytes(), parameters_of(options), options.ranks
    if options.engine == "inproc":
        base = 0
    strategies = options.strategies.split(",")
    runs = {strategy: [] for strategy in strategies}
    for _ in range(options.rounds):
        for strategy in strategies:
            runs[strategy].append(run(options, strategy))
    print(f"{options.model}, {parameters / 1e6:.1f} M parameters, {n} ranks ({options.engine}), {options.micro_batch} x "
          f"{options.seq} tokens each, {options.precision}; medians of {options.rounds} rounds; {base / MIB:.0f} MiB of a "
          "process without a model left out")
    print(f"{'':8} {'step':>8} {'of ddp':>7} {'sent':>9} {'/ k b':>6} {'memory':>9} {'formula':>9} {'ratio':>6} {'peak':>9}")
    share = (n - 1) / n * 4 * parameters
    first = statistics.median(one["step_s"] for one in runs[strategies[0]])
    for strategy in strategies:
        of = {key: statistics.median(one[key] for one in runs[strategy]) for key in runs[strategy][0]}
        state = STATE.get(strategy, STATE["zero3"])(n) * parameters
        held = of["median"] - base
        print(f"{strategy:8} {of['step_s']:7.3f}s {of['step_s'] / first:7.2f} {of['sent'] / MIB:8.1f}M "
              f"{of['sent'] / share:6.3f} {held / MIB:8.0f}M {state / MIB:8.0f}M {held / state:6.2f} "
              f"{(of['peak'] - base) / MIB:8.0f}M", flush=True)


if __name__ == "__main__":
    main()
