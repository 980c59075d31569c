"""What the program does, counted instead of timed: instructions, bytes copied, allocations, FLOPs, operations, launches,
buffers, bytes sent.

A slower machine changes none of these numbers, so a change that copies an activation once more, or computes more than
it did, fails here. The program runs with two lengths of answer, in Valgrind or recording itself; their difference is
what one token costs, without what starting costs. Limits are in limits.json beside this file, written by --update.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))

from recording import Recording  # noqa: E402

PROMPT = "ROMEO: I am"
FEW, MANY = 4, 12  # tokens of an answer
MANY_COUNTED = 84  # for Valgrind's counts: threads that wait or look at the clock copy and allocate a little, more on a busy machine


class Refused(Exception):
    pass


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):  # a run of training that a busy machine slows is INVALID by its times; its counts are not
        raise Refused(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def number_after(pattern, text):
    found = re.search(pattern, text)
    if not found:
        raise Refused(f"no '{pattern}' in:\n{text[-2000:]}")
    return int(found.group(1).replace(",", ""))


def calls_of(function, profile):
    """In callgrind's format, where a name stands once and its number after that."""
    names, callee, calls = {}, None, 0
    for line in profile.splitlines():
        if found := re.match(r"c?fn=(\(\d+\))(?: (.*))?$", line):
            names.setdefault(found.group(1), found.group(2) or "")
            callee = names[found.group(1)] if line.startswith("cfn=") else None
        elif callee is not None and line.startswith("calls="):
            calls += int(line[6:].split()[0]) if callee.startswith(function) else 0
    return calls


class Counter:
    def __init__(self, butterfly, model, folder):
        self.butterfly, self.model, self.folder = butterfly, model, folder
        # The kernels that Valgrind can run, and speeds measured once: measuring loops by the clock.
        self.environment = dict(os.environ, BUTTERFLY_ISA="avx2", BUTTERFLY_TUNE="off", XDG_CACHE_HOME=str(folder))
        self.environment.pop("BUTTERFLY_RECORD", None)

    def generate(self, tokens, nodes):
        return [self.butterfly, "generate", "-m", self.model, "-p", PROMPT, "-n", str(tokens), "--threads", "1",
                "--nodes", str(nodes), "--split", "uniform"]

    def train(self, steps):
        return [self.butterfly, "train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--seq", "64",
                "--batch", "4", "--threads", "2", "--steps", str(steps)]

    def recorded(self, command):
        """FLOPs of every span, and the sums that the one process counted."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run(command, dict(self.environment, BUTTERFLY_RECORD=str(folder)))
        (path,) = folder.glob("*.bftrace")
        recording = Recording(path)
        if recording.lost or recording.dropped:
            raise Refused(f"{recording.lost + recording.dropped} spans of {' '.join(command)} were lost")
        return dict(recording.samples[-1]["counters"], flops=sum(span.flops for span in recording.spans),
                    operations=sum(span.bytes > 0 for span in recording.spans))

    def grown(self, few, many, number):
        """Of each count, what it grew by, for each of `number` tokens or steps."""
        before, after = self.recorded(few), self.recorded(many)
        return {name: (after[name] - before[name]) / number for name in after}

    def copied(self, tokens, nodes):
        """Bytes that memcpy, memmove and their like moved in the whole process."""
        tool = ["valgrind", "--tool=dhat", "--mode=copy", f"--dhat-out-file={self.folder}/dhat.out"]
        return number_after(r"Total:\s+([\d,]+) bytes",
                            run(tool + self.generate(tokens, nodes), self.environment).stderr)

    def allocations(self, tokens, nodes):
        """Calls of malloc and new in the whole process."""
        tool = ["valgrind", "--tool=dhat", f"--dhat-out-file={self.folder}/dhat.out"]
        return number_after(r"Total:\s+[\d,]+ bytes in ([\d,]+) blocks",
                            run(tool + self.generate(tokens, nodes), self.environment).stderr)

    def in_stage(self, tokens):
        """Instructions, and work handed to the team, of a stage's steps alone: threads that wait spin for as long as they happen to."""
        out = pathlib.Path(self.folder, "callgrind.out")
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=butterfly::Stage::forward*"]
        found = run(tool + self.generate(tokens, 1), self.environment)
        return number_after(r"Collected : (\d+)", found.stderr), calls_of("butterfly::ThreadTeam::run_erased", out.read_text())

    def per_token(self, count, nodes, many):
        return (count(many, nodes) - count(FEW, nodes)) / (many - FEW)

    def all(self):
        run(self.generate(FEW, 1), self.environment)  # fills the cache of speeds
        generated = self.grown(self.generate(8, 1), self.generate(40, 1), 32)
        spread = self.grown(self.generate(8, 3), self.generate(40, 3), 32)
        trained = self.grown(self.train(4), self.train(12), 8)
        instructions, launches = ((many - few) / (MANY - FEW)
                                  for few, many in zip(self.in_stage(FEW), self.in_stage(MANY), strict=True))
        return {
            "FLOPs per token, one process": generated["flops"],
            "buffers from the system per token, one process": generated["tensor.pool_allocations"] - generated["tensor.pool_hits"],
            "bytes sent per token, three nodes": spread["wire.bytes_sent"],
            "messages per token, three nodes": spread["wire.messages_sent"],
            "FLOPs per step of training": trained["flops"],
            "operations per step of training": trained["operations"],
            "operations per token, one process": generated["operations"],
            "launches per token, one process": launches,
            "allocations per token, one process": self.per_token(self.allocations, 1, MANY_COUNTED),
            "bytes copied per token, one process": self.per_token(self.copied, 1, MANY_COUNTED),
            "bytes copied per token, three nodes": self.per_token(self.copied, 3, MANY_COUNTED),
            "instructions per token, AVX2": instructions,
        }


def compare(found, limits):
    """Sentences about numbers that are not as they were. A number that fell wants its limit lowered, or it may rise
    again unnoticed."""
    faults = []
    for name, limit in limits.items():
        value, expected = found.get(name), limit["value"]
        room = expected * limit["percent"] / 100
        if value is None:
            faults.append(f"{name}: was not counted")
        elif abs(value - expected) > room:
            word = "more" if value > expected else "less"
            faults.append(f"{name}: {value:.0f}, that is {word} than {expected:.0f} by more than {limit['percent']} %")
    faults += [f"{name}: has no limit" for name in found if name not in limits]
    return faults


# Heartbeats and wakes of threads are few and come by the clock: counts that they are in need room, on a busy machine more. One
# more copy of an activation between nodes would be 1024 bytes each time.
PERCENT = {"FLOPs per token, one process": 0, "FLOPs per step of training": 0,
           "operations per step of training": 0, "operations per token, one process": 0,
           "launches per token, one process": 0, "allocations per token, one process": 2,
           "instructions per token, AVX2": 3,
           "bytes copied per token, one process": 5,
           "bytes copied per token, three nodes": 30}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--update", action="store_true", help="write what is counted as the new limits")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (scripts/setup.sh)")
        return 77
    with tempfile.TemporaryDirectory(prefix="butterfly-counts-") as folder:
        found = Counter(arguments.butterfly, arguments.model, folder).all()
    for name, value in found.items():
        print(f"{value:14.0f}  {name}")
    limits = HERE / "limits.json"
    if arguments.update:
        new = {name: {"value": value, "percent": PERCENT.get(name, 2)} for name, value in found.items()}
        limits.write_text(json.dumps(new, indent=2) + "\n")
        return 0
    faults = compare(found, json.loads(limits.read_text()))
    for fault in faults:
        print(fault)
    if faults:
        print("If that is meant: the same command with --update writes the new limits.")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Refused, subprocess.TimeoutExpired) as fault:
        sys.exit(f"counts: {fault}")
