#!/usr/bin/env python3
"""Tokens per second with and without guesses, in turns, and whether the texts are the same.

    tools/bench_speculation.py [-m MODEL] [--rounds 5] [--tokens 200] [--link]

Three texts: one token again and again (all guesses come true: the most that there is to gain), what the model writes
greedily after a prompt that repeats itself, and draws at temperature 1 (few guesses come true: what guessing costs).
With --link the same over two workers, each behind 1 Gbit/s and 5 ms one way; that needs root for network namespaces.
Prints medians and the spread; exits with 1 where a text differs.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/faults"))

from harness import PROGRAM, Worker, commit, machine_line, median  # noqa: E402
from netlab import Lab  # noqa: E402

LINE = "The cat sat on the mat, and the dog sat on the log.\n"
CASES = {"one token": ("--logit-bias", "300:100", "-p", LINE), "greedy": ("-p", 6 * LINE),
         "temperature 1": ("--temp", "1", "-p", 6 * LINE)}
WAYS = {"off": ("--speculation", "off"), "ngram": ("--speculation", "ngram")}


def generate(options, case, way, where, seed):
    command = [*where, PROGRAM, "generate", "-m", options.model, "-n", str(options.tokens), "--ignore-end", "--json", "-q",
               "--seed", str(seed), *CASES[case], *WAYS[way], *options.more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def compare(options, where):
    differing = 0
    for case in CASES:
        rates, guessed = {way: [] for way in WAYS}, []
        for seed in range(options.rounds):
            runs = {way: generate(options, case, way, where, seed) for way in WAYS}
            differing += runs["off"]["tokens"] != runs["ngram"]["tokens"]
            guessed.append(runs["ngram"]["guessed_tokens"] / options.tokens)
            for way, run in runs.items():
                rates[way].append(run["decode_tokens_per_s"])
        told = ", ".join(f"{way} {median(all):.1f} ({min(all):.1f} to {max(all):.1f})" for way, all in rates.items())
        ratios = [ngram / off for off, ngram in zip(rates["off"], rates["ngram"])]
        print(f"{case}: {told} tokens/s, ratio {median(ratios):.2f}, {100 * median(guessed):.0f} % guessed", flush=True)
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=str(ROOT / "models/demo.gguf"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--link", action="store_true")
    options, options.more = parser.parse_known_args()
    print(f"{machine_line()}, commit {commit()}, {options.model}")
    with contextlib.ExitStack() as stack:
        where = ()
        if options.link:
            lab = stack.enter_context(Lab(3, rate="1gbit", slow={0: (5, 0), 1: (5, 0)}))
            workers = [stack.enter_context(Worker(listen=f"{lab.address(i)}:7000", namespace=lab.name(i)))
                       for i in range(2)]
            where = ("ip", "netns", "exec", lab.name(2))
            options.more += ["--insecure", "--workers", ",".join(worker.address for worker in workers)]
        differing = compare(options, where)
    print(f"{differing} texts differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
