#!/usr/bin/env python3
"""The peak of resident memory that `butterfly study` reports, beside the kernel's own (ru_maxrss, which is VmHWM of /proc/PID/status).

    python3 tools/compare_memory.py [--butterfly build/release/bin/butterfly] [-- COMMAND...]

Without a command: training of two shapes, and an answer of the demo model. Runs of one process alone, as the kernel's number is one
process's. Each command runs once before: a program that measures its machine for the first time reads buffers of 512 MiB, which a
recording leaves out. Exit code 1: one of them differs by more than 3 %.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOLERANCE = 0.03
COMMANDS = [
    ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--batch", "8", "--steps", "12", "--log", "silent"],
    ["train", "--model", "tinytransformer-small", "--data", "synthetic:markov", "--batch", "8", "--seq", "128", "--steps", "4",
     "--log", "silent"],
    ["generate", "-m", os.path.join(ROOT, "models/demo.gguf"), "-p", "ROMEO:", "-n", "60", "-q"],
]


def peaks(butterfly, command):
    """The kernel's and the study's, in bytes."""
    # Recording, too, since caches are measured for recordings alone.
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([butterfly, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                       env={**os.environ, "BUTTERFLY_RECORD": folder})
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([butterfly, *command], env={**os.environ, "BUTTERFLY_RECORD": folder},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 3):  # a few steps may have learned nothing
            raise SystemExit(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
        report = subprocess.run([butterfly, "study", "report", folder, "--json"], stdout=subprocess.PIPE, check=True)
        memory = json.loads(report.stdout)["memory"]
        if len(memory) != 1:
            raise SystemExit(f"{' '.join(command)}: {len(memory)} processes, expected one")
        return 1024 * usage.ru_maxrss, memory[0]["peak_resident_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--butterfly", default=os.path.join(ROOT, "build/release/bin/butterfly"))
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    far = False
    print(f"{'kernel':>12} {'study':>12} {'difference':>11}  command")
    for command in [arguments.command] if arguments.command else COMMANDS:
        kernel, study = peaks(arguments.butterfly, command)
        far |= abs(study / kernel - 1) > TOLERANCE
        print(f"{kernel / 2**20:8.1f} MiB {study / 2**20:8.1f} MiB {100 * (study / kernel - 1):+9.2f} %  {' '.join(command)}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
