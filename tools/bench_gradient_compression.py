#!/usr/bin/env python3
"""Compression of gradients: real runs of `butterfly train` with two ranks over TCP, by method and by link.

    python3 tools/bench_gradient_compression.py

Each run trains a model of 2.6 million parameters on synthetic:markov. A link is the loopback interface of a network
namespace of the run's own, shaped by a token bucket (tc tbf): both directions share its rate. Needs root and iproute2;
without them the unshaped runs alone are made. A round has every link and method, in an order that changes from run to
run; default rounds end in about seven minutes. Steps are counted from the sixth on: before that, memory is planned,
and `auto` has sent everything as it is and begins to try what should pay; its later trials are counted with the rest.
Medians over all counted steps of all rounds, with 95 % confidence intervals by drawing runs, and stretches of half a
second of them, anew.
Bytes are those that rank 0's connections counted; ratio is what `off` sends beside them. Ratio, codec rate, bytes and
loss are of the unshaped runs, whose steps are most; the last lines say what `auto` sent on each link.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from bench_vs_llamacpp import machine

METHODS = ("off", "fp16", "bf16", "int8", "lz4", "zstd", "auto")
# tc's rate, steps of a run, runs in a round
LINKS = {"100 Mbit/s": ("100mbit", 10, 1), "1 Gbit/s": ("1gbit", 41, 1), "unshaped": (None, 161, 2)}
ORDER = ("off", "auto", *METHODS[1:-1])  # of the runs: the two that are compared are neighbours in time
QUICK_STEPS = 8
WARM_UP = 5
LAST_STEPS = 20  # whose mean loss is the final one; the data of a step is the same for all
RUN_TIMEOUT_S = 300
BLOCK_S = 0.5
RESAMPLES = 1000


def commit():
    """Of the working tree, or nothing known."""
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() or "unknown"


def shaped(command, rate):
    """The command in a namespace of its own whose loopback carries `rate`; the namespace ends with it."""
    # A packet of loopback may have 64 KiB, which the bucket must hold.
    setup = "ip link set lo up"
    if rate:
        setup += f" && tc qdisc replace dev lo root tbf rate {rate} burst 256k latency 400ms"
    return ["unshare", "--net", "sh", "-c", setup + ' && exec "$@"', "sh", *command]


def can_shape():
    """Whether a namespace with a token bucket can be made, or a sentence why not."""
    for tool in ("ip", "tc", "unshare"):
        if not shutil.which(tool):
            return f"the program `{tool}` is missing"
    done = subprocess.run(shaped(["true"], "100mbit"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False)
    return None if done.returncode == 0 else f"no shaped namespace: {done.stderr.strip()}"


def train(arguments, method, rate, steps, namespace):
    """The steps of one run, as the program logs them, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        command = [arguments.butterfly, "train", "--model", arguments.model, "--data", "synthetic:markov", "--seq", "32",
                   "--batch", "4", "--micro-batch", "2", "--steps", str(steps), "--schedule", "constant", "--warmup", "0", "--lr", "1e-3",
                   "--ranks", "2", "--engine", "tcp", "--threads", "1", "--parallel.shared-memory", "false", "--compression", method, "--log", "silent", "--log-file", log]
        done = subprocess.run(shaped(command, rate) if namespace else command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=RUN_TIMEOUT_S, check=False)
        events = []
        if os.path.exists(log):
            with open(log, encoding="utf-8") as lines:
                events = [json.loads(line) for line in lines]
    result = next((event for event in events if event["event"] == "result"), None)
    # A verdict over a run as short as these is the audit's to give, and shown; a run without a result failed.
    if result is None:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return [event for event in events if event["event"] == "step"], result


def blocks_of(run):
    """The times of a run, cut into stretches of about BLOCK_S seconds."""
    size = max(1, round(BLOCK_S / statistics.median(run)))
    return [run[begin:begin + size] for begin in range(0, len(run), size)]


def resampled_medians(ways):
    """For each way, a list of runs, the medians of runs and of stretches in them drawn again and again with
    replacement, the same runs of all ways. Neighbouring steps share what else the machine does, and neighbouring runs
    too: steps drawn one by one would promise an interval that the next run leaves."""
    cut = [[blocks_of(run) for run in runs] for runs in ways]
    generator = random.Random(1)
    medians = [[] for _ in ways]
    for _ in range(RESAMPLES):
        drawn = generator.choices(range(len(cut[0])), k=len(cut[0]))
        for blocks, into in zip(cut, medians):
            stretches = (block for run in drawn for block in generator.choices(blocks[run], k=len(blocks[run])))
            into.append(statistics.median(time for block in stretches for time in block))
    return medians


def limits(values):
    """The middle 95 %."""
    values = sorted(values)
    return values[len(values) * 25 // 1000], values[-1 - len(values) * 25 // 1000]


def median_of(runs):
    return statistics.median(time for run in runs for time in run)


def interval(runs):
    """The median of all steps and its 95 % confidence interval."""
    return median_of(runs), *limits(resampled_medians([runs])[0])


def ratio_interval(runs, beside):
    """The same of the ratio of two medians whose runs were neighbours in time."""
    pairs = zip(*resampled_medians([runs, beside]))
    return median_of(runs) / median_of(beside), *limits([a / b for a, b in pairs])


class Results:
    def __init__(self):
        self.times = {}     # (link, method): seconds of the counted steps, a list for each run
        self.means = {}     # (link, method): mean seconds of all steps but the first two, of each run
        self.counted = {}   # (link, method): counted steps
        self.losses = {}    # method: mean loss of the last steps of the last unshaped run
        self.invalid = []   # what audits said

    def add(self, link, method, steps, result):
        counted = steps[WARM_UP:]
        self.times.setdefault((link, method), []).append([step["step_time"] for step in counted])
        self.means.setdefault((link, method), []).append(statistics.mean(step["step_time"] for step in steps[2:]))
        self.counted.setdefault((link, method), []).extend(counted)
        if link == "unshaped":
            self.losses[method] = statistics.mean(step["loss"] for step in steps[-LAST_STEPS:])
        if not result["valid"]:
            self.invalid.append(f"{method} at {link}: {result['verdict']}")


def measure(arguments, links, namespace):
    results = Results()
    order = [method for method in ORDER if method in ("off", "auto", *arguments.methods)]
    for number in range(arguments.rounds):
        for link, (rate, steps, runs) in links.items():
            for run in range(1 if arguments.quick else runs):
                for method in order if (number + run) % 2 == 0 else order[::-1]:
                    count = QUICK_STEPS if arguments.quick else steps
                    results.add(link, method, *train(arguments, method, rate, count, namespace))
                    print(f"round {number + 1}: {method} at {link}", file=sys.stderr, flush=True)
    return results


def sent_bytes(results, link, method):
    """Of rank 0 in a step, median."""
    return statistics.median(step["bytes_sent"] for step in results.counted[link, method])


def describe_method(results, method):
    """(ratio, codec GB/s, bytes of a step). The rate: bytes that a rank would send, by its seconds of packing and
    unpacking, of the steps that pack."""
    steps = results.counted["unshaped", method]
    plain = sent_bytes(results, "unshaped", "off")
    sent = sent_bytes(results, "unshaped", method)
    packed = [step for step in steps if step["codec_s"] > 0]
    rate = sum(step["uncompressed_bytes"] for step in packed) / sum(step["codec_s"] for step in packed) / 1e9 if packed else None
    return plain / sent, rate, sent


def show(results, links):
    head = f"{'method':<7s} {'ratio':>6s} {'codec GB/s':>11s} {'sent MB/step':>13s}"
    print(head + "".join(f"  {'ms at ' + link:<24s}" for link in links) + "  loss, against off")
    for method in METHODS:
        if ("unshaped", method) not in results.counted:
            continue
        ratio, rate, sent = describe_method(results, method)
        line = f"{method:<7s} {ratio:6.2f} {f'{rate:.2f}' if rate else '-':>11s} {sent / 1e6:13.2f}"
        for link in links:
            middle, low, high = interval(results.times[link, method])
            line += f"  {f'{middle * 1e3:.1f} ({low * 1e3:.1f}-{high * 1e3:.1f})':<24s}"
        print(line + f"  {results.losses[method]:.4f}, {results.losses[method] - results.losses['off']:+.4f}")


def judge(results, links):
    """Whether `auto` is slower than off: the whole interval of the ratio of their medians above 1. How many links say so."""
    slower = 0
    for link in links:
        ratio, low, high = ratio_interval(results.times[link, "auto"], results.times[link, "off"])
        slower += low > 1
        means = [statistics.mean(results.means[link, method]) * 1e3 for method in ("off", "auto")]
        print(f"{link}: auto takes {ratio:.3f} ({low:.3f}-{high:.3f}) of the time of off, sending {sent_bytes(results, link, 'auto') / 1e6:.2f} "
              f"MB/step: {'SLOWER' if low > 1 else 'not slower'} beyond the interval; means of all steps but two, probes and trials "
              f"included: {means[1]:.1f} and {means[0]:.1f} ms")
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tinytransformer-tiny", help="a shape by name")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round of few steps, to see that it works; judges nothing")
    parser.add_argument("--links", nargs="+", choices=list(LINKS), default=list(LINKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="off and auto are always there")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    arguments = parser.parse_args()
    if "unshaped" not in arguments.links:
        arguments.links.append("unshaped")
    if arguments.quick:
        arguments.rounds = 1
    links = {link: LINKS[link] for link in LINKS if link in arguments.links}
    print(f"machine {machine()}, commit {commit()}, {arguments.rounds} rounds: {' '.join(sys.argv)}")
    missing = can_shape()
    if missing:
        print(f"{missing}: unshaped runs alone, without a namespace")
        links = {"unshaped": LINKS["unshaped"]}
    results = measure(arguments, links, not missing)
    print(f"2 ranks (processes over TCP, 1 thread each), {arguments.model}, sequences of 32 in batches of 4; "
          f"median (95 % interval of it) over steps from {WARM_UP + 1} on: " +
          ", ".join(f"{sum(map(len, results.times[link, 'off']))} at {link}" for link in links))
    show(results, links)
    slower = 0 if arguments.quick else judge(results, links)
    for sentence in results.invalid:
        print(f"audit: {sentence}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
