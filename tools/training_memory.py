#!/usr/bin/env python3
"""Holds the memory of training against what is said of it: the state by its formulas, peaks by `train --memory`.

    tools/training_memory.py state [--model gpt2-124m] [--ranks 1,2,4] [--strategies ddp,zero1,zero2,zero3]
    tools/training_memory.py peak  [--case "--model gpt2-124m --seq 128 --batch 4 --micro-batch 4"]...
    tools/training_memory.py limit [--model gpt2-124m] [--ranks 4] [--memory SIZE]

state: one run for each strategy and number of ranks, a micro-batch of 16 tokens each, so that little but the state is
there. Beside the formula (16, 8 + 8/n, 4 + 12/n, 16/n bytes of each parameter) what the ranks have asked for and what is
resident between two steps, without what a run of a small model has beside its arrays; the fullest rank. Bytes that a
rank sends in a step, in units of k = (n-1)/n of the parameters' bytes: 2, 2, 2, 3 are due for a micro-batch.

peak: what `train --memory` predicts for each case and the most that the kernel saw of a rank (VmHWM), without gradients
of others that it reads in their memory.

limit: a control group of `--memory` for each rank (needs the right to make one). One rank in one of them is killed; the
same model over `--ranks` such ranks trains and is written: `butterfly worker` processes, and this machine's rank 0.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("BUTTERFLY_PROGRAM", str(ROOT / "build/release/bin/butterfly"))
MIB = 1 << 20
STATE = {"ddp": lambda n: 16, "zero1": lambda n: 8 + 8 / n, "zero2": lambda n: 4 + 12 / n, "zero3": lambda n: 16 / n}
SENT = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3}
CASES = ["--model gpt2-124m --seq 128 --batch 4 --micro-batch 1",
         "--model gpt2-124m --seq 128 --batch 4 --micro-batch 4",
         "--model gpt2-124m --seq 128 --batch 4 --micro-batch 4 --recompute selective",
         "--model gpt2-124m --seq 128 --batch 4 --micro-batch 4 --recompute block",
         "--model gpt2-124m --seq 64 --batch 4 --micro-batch 1 --precision bf16",
         "--model tinytransformer-medium --seq 128 --batch 4 --micro-batch 2",
         "--model gpt2-124m --seq 64 --batch 8 --micro-batch 2 --deterministic"]
DIVIDED = ["--model gpt2-124m --seq 64 --batch 4 --micro-batch 1", "--model tinytransformer-medium --seq 64 --batch 8 --micro-batch 2"]
CASES += [f"{case} --parallel {strategy} --ranks {ranks}" for ranks in (2, 4) for case in DIVIDED for strategy in STATE]


def memory_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return {key: int(value) * 1024 for key, value in re.findall(r"(VmHWM|RssShmem):\s+(\d+)", file.read())}


class Peaks(threading.Thread):
    """The most that a process and its children had, until it ends."""

    def __init__(self, process):
        super().__init__()
        self.process, self.of = process, {}

    def run(self):
        while self.process.poll() is None:
            try:
                with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
                    for pid in [str(self.process.pid), *file.read().split()]:
                        seen = self.of.setdefault(pid, {})
                        for key, value in memory_of(pid).items():
                            seen[key] = max(seen.get(key, 0), value)
            except (OSError, ValueError):
                pass  # one has ended
            time.sleep(0.02)


def train(flags):
    """The result of a run as the program tells it, and the peaks of its processes."""
    command = [PROGRAM, "train", "--data", "synthetic:markov", "--json", "--engine", "tcp", "--mirror", "0",
               "--data.validation-share", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        peaks = Peaks(process)
        peaks.start()
        out, err = process.communicate()
        peaks.join()
    if process.returncode not in (0, 3):  # 3: valid or not, it ran
        raise SystemExit(f"{' '.join(command)}: {err[-500:]}")
    return json.loads(out), [one for one in peaks.of.values() if one]


def fullest(result):
    """What the fullest rank asked for, and had between steps."""
    ranks = result.get("ranks") or [result.get("summary", result)]
    return (max(rank["peak_memory_allocated"] for rank in ranks), max(rank["peak_memory_reserved"] for rank in ranks))


def parameters_of(model):
    text = subprocess.run([PROGRAM, "plan", "-m", model, "--train", "--world-size", "1", "--memory-gb-per-s", "10",
                           "--fp32-gflops", "100", "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(text)["training"]["ddp"]["nodes"][0]["weight_bytes"] // 4


def state(options):
    parameters = parameters_of(options.model)
    print(f"{options.model}, {parameters / 1e6:.1f} M parameters, fp32, AdamW; the fullest rank")
    print(f"{'':8} {'ranks':>5} {'formula':>9} {'allocated':>10} {'ratio':>6} {'resident':>9} {'ratio':>6} "
          f"{'sent':>9} {'/ k b':>6} {'due':>4}")
    for n in [int(text) for text in options.ranks.split(",")]:
        for strategy in options.strategies.split(","):
            flags = ["--steps", "3", "--seq", "16", "--batch", str(n), "--micro-batch", "1", "--threads", "1", "--ranks",
                     str(n), "--parallel", strategy, "--recompute", "block", "--parallel.shared-memory", "false"]
            small_allocated, small_resident = fullest(train(["--model", "tinytransformer-tiny", *flags])[0])
            result = train(["--model", options.model, *flags])[0]
            allocated, resident = fullest(result)
            resident -= small_resident - small_allocated
            formula = STATE[strategy](n) * parameters
            summary = result.get("summary", result)
            sent = summary["network_kb_per_s"] * 1000 * summary["avg_step_time"]
            share = (n - 1) / n * 4 * parameters
            print(f"{strategy:8} {n:5} {formula / MIB:8.0f}M {allocated / MIB:9.0f}M {allocated / formula:6.3f} "
                  f"{resident / MIB:8.0f}M {resident / formula:6.3f} {sent / MIB:8.1f}M "
                  f"{sent / share if n > 1 else 0:6.3f} {SENT[strategy] if n > 1 else 0:4}", flush=True)


def peak(options):
    print(f"{'predicted':>10} {'measured':>9} {'ratio':>6}")
    for case in options.case or CASES:
        flags = shlex.split(case)
        for name, value in (("--steps", "3"), ("--threads", "1"), ("--recompute", "none"), ("--parallel", "ddp")):
            if name not in flags:
                flags += [name, value]
        result, peaks = train([*flags, "--memory", "1TiB"])
        strategy = flags[flags.index("--parallel") + 1]
        ranks = int(flags[flags.index("--ranks") + 1]) if "--ranks" in flags else 1
        whole = strategy in ("ddp", "zero1")  # gradients lie where the other ranks read them
        own = 4 * parameters_of(flags[flags.index("--model") + 1]) if whole and ranks > 1 else 0
        measured = max(one["VmHWM"] - max(0, one.get("RssShmem", 0) - own) for one in peaks)
        predicted = result["predicted_memory_bytes"]
        print(f"{predicted / MIB:9.0f}M {measured / MIB:8.0f}M {predicted / measured:6.3f}  {case}", flush=True)


class Group:
    """A control group with a limit of memory, below this process's own: version 1 or 2."""

    def __init__(self, name, limit):
        groups = dict(line.strip().split(":", 2)[1:] for line in open("/proc/self/cgroup", encoding="ascii"))
        first = "memory" in groups
        base = pathlib.Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup") / groups["memory" if first else ""][1:]
        self.path = base / f"butterfly-{os.getpid()}-{name}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        self.peak_file = self.path / ("memory.max_usage_in_bytes" if first else "memory.peak")

    def start(self, command):
        join = f"echo $$ > {self.path}/cgroup.procs && exec " + shlex.join(command)
        return subprocess.Popen(["sh", "-c", join], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def peak(self):
        return int(self.peak_file.read_text()) if self.peak_file.exists() else 0

    def remove(self):
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)  # its last process is ending
        return None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def limit(options):
    size = subprocess.run(["numfmt", "--from=iec-i", "--suffix=B", options.memory], capture_output=True, text=True, check=True)
    limit_bytes = int(size.stdout.strip().rstrip("B"))
    flags = ["train", "--model", options.model, "--data", "synthetic:markov", "--seq", "32", "--batch", str(options.ranks),
             "--data.validation-share", "0", "--steps", "3", "--threads", "1", "--mirror", "0"]
    groups = [Group(f"{i}", limit_bytes) for i in range(options.ranks + 1)]
    workers = []
    folder = tempfile.TemporaryDirectory()
    model = pathlib.Path(folder.name) / "model.gguf"
    try:
        one = groups[0].start([PROGRAM, *flags, "--micro-batch", "1"])
        one.communicate(timeout=options.seconds)
        killed = -one.returncode == signal.SIGKILL
        print(f"one rank in {options.memory}: {'killed by the kernel' if killed else f'exit code {one.returncode}'}")
        ports = [free_port() for _ in range(options.ranks - 1)]
        for group, port in zip(groups[2:], ports):
            workers.append(group.start([PROGRAM, "worker", "--listen", f"127.0.0.1:{port}", "--insecure", "--threads", "1"]))
        time.sleep(2)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        several = groups[1].start([PROGRAM, *flags, "--workers", addresses, "--insecure", "--memory", options.memory,
                                    "--out", str(model)])
        _, err = several.communicate(timeout=options.seconds)
        print(err)
        print(f"{options.ranks} ranks in {options.memory} each: exit code {several.returncode}; at their peaks "
              + ", ".join(f"{group.peak() / MIB:.0f}M" for group in groups[1:]))
        print(f"the model that they wrote: {model.stat().st_size / MIB:.0f}M" if model.exists() else "no model was written")
        return 0 if killed and several.returncode == 0 and model.exists() else 1
    finally:
        for worker in workers:
            worker.terminate()
            worker.communicate()
        for group in groups:
            group.remove()
        folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    states = commands.add_parser("state")
    states.add_argument("--model", default="gpt2-124m")
    states.add_argument("--ranks", default="1,2,4")
    states.add_argument("--strategies", default="ddp,zero1,zero2,zero3")
    states.set_defaults(run=state)
    peaks = commands.add_parser("peak")
    peaks.add_argument("--case", action="append", help="flags of a run; several times")
    peaks.set_defaults(run=peak)
    limits = commands.add_parser("limit")
    limits.add_argument("--model", default="gpt2-124m")
    limits.add_argument("--ranks", type=int, default=4)
    limits.add_argument("--memory", default="1GiB")
    limits.add_argument("--seconds", type=int, default=600)
    limits.set_defaults(run=limit)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    raise SystemExit(main())
