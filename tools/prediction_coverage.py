#!/usr/bin/env python3
"""Whether measured values lie inside the intervals of predictions, and how wide those are.

    python3 tools/prediction_coverage.py --butterfly build/release/bin/butterfly -m models/demo.gguf
    python3 tools/prediction_coverage.py --load 1      beside this number of programs that use a CPU each

Runs `generate` over two workers of this machine and `train`, of several lengths, types and ranks in a changing order, from
an empty cache on, so that the first predictions know nothing of earlier ones. Each prediction that is not inconclusive must
hold its measured value: nine of ten are expected to.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

from plant_causes import BUSY, started, workers

TRAIN = ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "15", "--log", "silent", "--json"]


def commands(arguments, addresses):
    """The kinds of runs, each a list of words."""
    generate = ["generate", "-m", arguments.model, "--workers", ",".join(addresses), "--json", "--ignore-end", "--measure-links"]
    return [[*generate, "-p", "ROMEO: I am", "-n", "200", "--split", "uniform"],
            [*generate, "-p", "ROMEO: I am " * 20, "-n", "100", "--split", "balanced"],
            [*TRAIN, "--seq", "64"], [*TRAIN, "--seq", "128", "--batch", "4"],
            [*TRAIN, "--seq", "64", "--threads", "1"], [*TRAIN, "--seq", "64", "--ranks", "2"],
            [*TRAIN, "--seq", "64", "--precision", "bf16"]]


def predictions(result):
    """(name, predicted, low, high, measured inside, inconclusive) of each."""
    found = result.get("predicted", {})
    for what in ("prefill", "decode", "simulated"):
        if f"{what}_interval" in found:
            value = found[what + ("_s" if what == "simulated" else "_tokens_per_s")]
            yield what, value, *found[f"{what}_interval"], found[f"{what}_within"], found[f"{what}_inconclusive"]
    if "predicted_step_s" in result:
        yield "train", result["predicted_step_s"], *result["predicted_step_interval"], result["predicted_step_within"], result["predicted_step_inconclusive"]


def one_run(arguments, words, environment):
    done = subprocess.run([arguments.butterfly, *words], capture_output=True, text=True, timeout=300, env=environment, check=False)
    if done.returncode not in (0, 3):  # 3: a run too short to be valid
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1000:]}")
    result = json.loads(done.stdout)
    return list(predictions(result)), result.get("not_predicted", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--load", type=int, default=0, help="programs beside it that use a CPU each")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    order = random.Random(arguments.seed)
    rows, silent = [], 0
    with tempfile.TemporaryDirectory(prefix="butterfly-coverage-") as cache, contextlib.ExitStack() as stack:
        environment = dict(os.environ, XDG_CACHE_HOME=cache)
        os.environ["XDG_CACHE_HOME"] = cache
        addresses = stack.enter_context(workers(arguments, [[], []]))
        kinds = commands(arguments, addresses)
        one_run(arguments, kinds[0], dict(environment, XDG_CACHE_HOME=cache + "/first"))  # the workers measure themselves
        stack.enter_context(started([BUSY] * arguments.load))
        for number in range(arguments.runs):
            found, unpredicted = one_run(arguments, order.choice(kinds), environment)
            silent += bool(unpredicted)
            for name, value, low, high, within, inconclusive in found:
                rows.append((name, (high - low) / 2 / value, within, inconclusive))
                print(f"run {number + 1:3}  {name:<10} {value:10.4g}  {low:10.4g} to {high:10.4g}  "
                      f"{'inconclusive' if inconclusive else 'inside' if within else 'OUTSIDE'}", file=sys.stderr, flush=True)
    judged = [row for row in rows if not row[3]]
    inside = sum(row[2] for row in judged)
    print(f"{arguments.runs} runs, {len(rows)} predictions, {len(rows) - len(judged)} inconclusive, {silent} runs said that they predict nothing")
    if judged:
        print(f"inside: {inside} of {len(judged)}, {100 * inside / len(judged):.0f} %; "
              f"median width +-{100 * statistics.median(row[1] for row in judged):.0f} %")
    return 0 if judged and inside >= 0.9 * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
