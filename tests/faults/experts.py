#!/usr/bin/env python3
"""Proves: experts over two, three and five unequal nodes write what one process writes, also when a node dies.

A model of eight experts in the mix q4_k_m, its members of unlike speed, so that their shares are unequal. For each
number of nodes the whole text, then one in which a member is killed after some bytes, each member in its turn. Then
plans by hand in which experts and slices go apart: members with many of the one and few of the other, or none.

    experts.py [--model FILE] [--tokens N] [--quick] [--break]

--model: a GGUF file, or a Hugging Face directory such as tools/make_moe_model.py writes; without it weights are random.
Exit code 0: all held; 1: a text differed or a run failed.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import harness
import models
from harness import PROGRAM, Generation, Hang, Worker, reference

ATTEMPTS = 5  # the text may be written before its member dies
LATE = "the text was written before the member died"
SPEEDS = (1.0, 0.4, 0.7, 0.25, 0.55)


def quantised(source, folder):
    path = os.path.join(folder, "q4_k_m.gguf")
    subprocess.run([PROGRAM, "convert", source, path, "--type", "q4_k_m"], check=True, capture_output=True, timeout=120)
    return path


# Of the 32 slices and of the eight experts.
BY_HAND = ((("slices 0-25", "experts 0-1"), ("slices 26-31", "experts 2-7")),
           (("slices none", "experts 0-6"), ("slices 0-31", "experts 7")),
           (("slices 0-9", "experts none"), ("slices none", "experts 0-4"), ("slices 10-31", "experts 5-7")))


def shares(run):
    """The slices of each member, and those of the experts where these are others, as the summary tells."""
    told = []
    for _, line in run.lines:
        own = re.search(r", (no slices|slices (\d+)-(\d+))", line)
        experts = re.search(r"(no expert slices|expert slices (\d+)-(\d+))", line)
        if own:
            told.append("+".join(str(int(m[3]) - int(m[2]) + 1 if m[2] else 0) for m in (own, experts) if m))
    return ", ".join(told)


def custom_file(folder, shares_of_nodes, layers):
    path = os.path.join(folder, "custom.txt")
    with open(path, "w", encoding="ascii") as out:
        for node, words in enumerate(shares_of_nodes):
            out.write(f"{node} 0-{layers - 1} {' '.join(words)}\n")
    return path


def one_run(nodes, victim, load, text, split=("--split", "tensor")):
    """What is wrong, and what is to be said of it."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("--emulate", speed)) for speed in SPEEDS[:nodes]]
        run = stack.enter_context(Generation(workers, options=split, **load))
        if victim is not None:
            if not run.wait_for_bytes(20):
                return f"ended before its first bytes:\n{run.errors()}", ""
            workers[victim].signal(signal.SIGKILL)
        try:
            code = run.wait()
        except Hang as hang:
            return f"hang: {hang}", ""
        if code != 0:
            return f"exit code {code}:\n{run.errors()}", ""
        if run.text() != text:
            return "ANOTHER text", ""
        if victim is not None and not any(number > 1 for _, number, _ in run.epochs()):
            return LATE, ""
        return "", "" if victim is not None else f", slices (+ those of experts) {shares(run)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one victim for each number of nodes")
    parser.add_argument("--break", dest="wrong", action="store_true", help="compare with a wrong text: must fail")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        load = {"tokens": options.tokens, "model": quantised(options.model or models.eight_experts(), folder)}
        text = reference(**load)
        expected = harness.wrong(text) if options.wrong else text
        for nodes in (2, 3, 5):
            victims = [nodes - 1] if options.quick else range(nodes)
            for victim in (None, *victims):
                for _ in range(ATTEMPTS):
                    wrong, note = one_run(nodes, victim, load, expected)
                    if wrong != LATE:
                        break
                failed += bool(wrong)
                label = "the same bytes" if victim is None else f"member {victim} killed, the same bytes"
                print(f"{nodes} nodes: {wrong or label + note}", flush=True)
        for words in BY_HAND if options.model is None else ():
            split = ("--split", "custom", "--custom", custom_file(folder, words, layers=2))
            wrong, note = one_run(len(words), None, load, expected, split)
            failed += bool(wrong)
            print(f"{len(words)} nodes by hand: {wrong or 'the same bytes' + note}", flush=True)
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
