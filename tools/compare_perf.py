#!/usr/bin/env python3
"""Shares of the steps' time by kind of operation, as a recording has them and as `perf record` samples them, of one and the same run.

    cmake --preset profile && cmake --build --preset profile --target butterfly
    python3 tools/compare_perf.py [--butterfly build/profile/bin/butterfly] [-- COMMAND...]

perf samples functions and knows no operation, a recording times operations and knows no function: what both say of matmuls, attention
and the rest of a step has to agree. Samples are of the same clock as spans, and count where they fall into a step of the busiest
thread. Use one thread and a quiet machine; without a command, a training and an answer of the demo model. Needs `perf` (Debian:
linux-perf) and a program with frame pointers. Exit code 1: a share differs by more than 5 points.
"""

import argparse
import bisect
import collections
import os
import re
import subprocess
import sys
import tempfile

from recording import CONTAINERS, MATMULS, Recording

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
POINTS = 5.0
COMMANDS = [
    ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--batch", "8", "--steps", "60", "--log", "silent",
     "--threads", "1"],
    ["generate", "-m", os.path.join(ROOT, "models/demo.gguf"), "-p", "ROMEO:", "-n", "400", "-q", "--threads", "1",
     "--samples", "16", "--json"],
]
STEPS = {"train_step", "prefill", "decode", "mixed"}
# By the functions that compute, whichever function calls them; the first that fits any frame of a sample, so attention's own matmuls are its.
FUNCTIONS = [
    ("attention", r"attention_simd|attention_backward_simd|attention_rows|mix_values|fold_segment|mix_values_in_keys"),
    ("matmul", r"multiply_panels|::multiply\b|multiply<|::pack\b|::pack<|pack_lanes|all_slices|one_slice|linear|PackedEngine|TiledGemm|[Gg]emm"),
    ("norm", r"norm_simd|norm_backward_simd|norm_row"),
    ("activation", r"silu|gelu"),
    ("rotary", r"rope|rotate|sincos|store_(key|value)_simd"),
    ("softmax_loss", r"cross_entropy"),
    ("optimizer", r"adamw|sum_of_squares"),
    ("quantize", r"quantize_row"),
]
ZONES = {"attention": "attention", "norm": "norm", "activation": "activation", "rotary": "rotary", "softmax_loss": "softmax_loss",
         "update": "optimizer", "gradient_norm": "optimizer", "quantize": "quantize"}


def kind_of_zone(zone):
    return "matmul" if zone in MATMULS else ZONES.get(zone, "rest")


def shares_by_recording(spans, thread):
    """Of the steps of this thread; and the steps, by begin."""
    mine = [span for span in spans if span.thread == thread]
    steps = sorted((span.begin, span.end) for span in mine if span.zone in STEPS)
    begins = [begin for begin, _ in steps]
    sums = collections.Counter()
    stack = []
    for span in sorted(mine, key=lambda one: (one.begin, -one.end)):
        at = bisect.bisect_right(begins, span.begin) - 1
        if at < 0 or span.begin >= steps[at][1] or span.zone in CONTAINERS or span.zone in STEPS:
            continue
        while stack and stack[-1].end <= span.begin:
            stack.pop()
        if stack and span.end <= stack[-1].end:
            sums[kind_of_zone(stack[-1].zone)] -= span.end - span.begin  # it is inside of another operation
        sums[kind_of_zone(span.zone)] += span.end - span.begin
        stack.append(span)
    whole = sum(end - begin for begin, end in steps)
    sums["rest"] = whole - sum(ns for kind, ns in sums.items() if kind != "rest")
    return {kind: ns / whole for kind, ns in sums.items()}, steps


def samples_of(data):
    """Time in nanoseconds, thread, frames from the inside."""
    text = subprocess.run(["perf", "script", "-i", data, "--ns", "-F", "tid,time,ip,sym"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, errors="replace", check=True).stdout
    for block in text.split("\n\n"):
        lines = block.strip("\n").splitlines()
        head = re.match(r"\s*(\d+)\s+(\d+)\.(\d+):", lines[0]) if lines else None
        if head:
            yield int(head[2]) * 10**9 + int(head[3]), int(head[1]), [line.strip().partition(" ")[2] for line in lines[1:]]


def kind_of_frames(frames):
    for kind, pattern in FUNCTIONS:
        if any(re.search(pattern, frame) for frame in frames):
            return kind
    return "rest"


def shares_by_perf(data, steps):
    begins = [begin for begin, _ in steps]
    counts, rest = collections.defaultdict(collections.Counter), collections.Counter()
    for at_ns, thread, frames in samples_of(data):
        at = bisect.bisect_right(begins, at_ns) - 1
        if at < 0 or at_ns >= steps[at][1]:
            continue
        kind = kind_of_frames(frames)
        counts[thread][kind] += 1
        if kind == "rest":
            rest[frames[0] if frames else "?"] += 1
    if not counts:
        raise SystemExit("perf took no sample inside of a step")
    busiest = max(counts.values(), key=lambda one: one.total())
    return {kind: count / busiest.total() for kind, count in busiest.items()}, busiest.total(), rest


def compare(butterfly, command, show_rest):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        # Once before, so that this machine's peaks are known and nothing measures them meanwhile.
        subprocess.run([butterfly, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        run = subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-k", "CLOCK_MONOTONIC", "--call-graph", "fp", "-o",
                              data, butterfly, *command], env={**os.environ, "BUTTERFLY_RECORD": folder},
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        files = [entry.path for entry in os.scandir(folder) if entry.name.endswith(".bftrace")]
        if len(files) != 1 or not os.path.exists(data):
            raise SystemExit(f"{' '.join(command)}: {len(files)} recordings, expected one; {run.stderr}")
        recording = Recording(files[0])
        threads = collections.Counter()
        for span in recording.spans:
            if span.zone in STEPS:
                threads[span.thread] += span.end - span.begin
        ours, steps = shares_by_recording(recording.spans, threads.most_common(1)[0][0])
        theirs, samples, rest = shares_by_perf(data, steps)
    print(f"{' '.join(command)}\n{len(steps)} steps, {samples} samples\n{'':14} {'recording':>10} {'perf':>10} {'points':>8}")
    far = False
    for kind in sorted(set(ours) | set(theirs), key=lambda one: -ours.get(one, 0.0)):
        points = 100 * (ours.get(kind, 0.0) - theirs.get(kind, 0.0))
        far |= abs(points) > POINTS
        print(f"{kind:14} {100 * ours.get(kind, 0.0):8.1f} % {100 * theirs.get(kind, 0.0):8.1f} % {points:+8.1f}")
    if show_rest:
        print("most of perf's rest: " + ", ".join(f"{name} {count}" for name, count in rest.most_common(8)))
    print()
    return far


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--butterfly", default=os.path.join(ROOT, "build/profile/bin/butterfly"))
    parser.add_argument("--show-rest", action="store_true", help="name the functions that are in no kind")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    results = [compare(arguments.butterfly, command, arguments.show_rest)
               for command in ([arguments.command] if arguments.command else COMMANDS)]
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main())
