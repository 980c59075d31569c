#!/usr/bin/env python3
"""Proves: experts over two, three and five unequal nodes write what one process writes, also when a node dies.

A model of eight experts in the mix q4_k_m, its members of unlike speed, so that their shares are unequal. For each
number of nodes the whole text, then one in which a member is killed after some bytes, each member in its turn.

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


def shares(run):
    """The slices of each member, as the summary tells."""
    return [int(m[2]) - int(m[1]) + 1 for _, line in run.lines if (m := re.search(r"slices (\d+)-(\d+)", line))]


def one_run(nodes, victim, load, text):
    """What is wrong, and what is to be said of it."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("--emulate", speed)) for speed in SPEEDS[:nodes]]
        run = stack.enter_context(Generation(workers, options=("--split", "tensor"), **load))
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
        return "", "" if victim is not None else f", slices {shares(run)}"


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
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
