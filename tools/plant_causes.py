#!/usr/bin/env python3
"""Plants causes of slowness, one at a time, and says whether `butterfly study` names each first and predicts its remedy.

    python3 tools/plant_causes.py --butterfly build/release/bin/butterfly -m models/demo.gguf
    python3 tools/plant_causes.py --only thin_link --rounds 5     (as root: a link of a network namespace)

Of each cause: what the study put first, the remedy, the speed that it predicted, and what `study try` reached by it (the
median of rounds in turns with the command as it is). Causes without a flag (allocation, foreign load, the wrong core) are
removed by this program. The last row has nothing planted, and must have no advice. Quiet: no run of that row was disturbed;
else its prediction counts for nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "faults"))

TRAIN = ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "40"]
FUSION = {"attention_memory", "separate_qkv", "separate_gate_up", "separate_update", "softmax", "launch_overhead"}
# Takes fresh memory at every tenth look at the clock of the first thread, and gives it back.
ALLOCATES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  static __thread unsigned calls, inside;
  if (real == NULL) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  if (!inside && gettid() == getpid() && ++calls % 10 == 0) {
    inside = 1;
    void* pages = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED) {
      memset(pages, 1, 4 << 20);
      munmap(pages, 4 << 20);
    }
    inside = 0;
  }
  return real(clock, now);
}
"""
BUSY = [sys.executable, "-c", "while True: pass"]


@contextlib.contextmanager
def started(commands):
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def address_of(worker):
    for line in worker.stderr:
        if line.startswith("listening on "):
            return line.split()[2]
    raise SystemExit("a worker ended before it listened")


@contextlib.contextmanager
def workers(arguments, options, lab=None):
    """One worker for each list of options; their addresses."""
    commands = []
    for number, extra in enumerate(options, start=1):
        inside = ["ip", "netns", "exec", lab.name(number)] if lab else []
        listen = f"{lab.address(number)}:7000" if lab else "127.0.0.1:0"
        commands.append([*inside, arguments.butterfly, "worker", "--listen", listen, "--threads", "1",
                         *(["--insecure"] if lab else []), *extra])
    with started(commands) as running:
        yield [address_of(worker) for worker in running]


class Study:
    def __init__(self, arguments, prefix=()):
        self.arguments, self.prefix = arguments, list(prefix)

    def call(self, *words):
        done = subprocess.run([*self.prefix, self.arguments.butterfly, "study", *words], capture_output=True, text=True,
                              timeout=580, check=False)
        if done.returncode != 0:
            raise SystemExit(f"study {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    def run(self, command):
        with tempfile.TemporaryDirectory(prefix="butterfly-causes-") as folder:
            return self.call("run", "--json", "-o", folder, "--", *command)

    def tried(self, command):
        with tempfile.TemporaryDirectory(prefix="butterfly-causes-") as folder:
            rounds = str(self.arguments.rounds)
            return self.call("try", "--json", "--most", "1", "--rounds", rounds, "-o", folder, "--", *command)


def unfused(arguments):
    yield Study(arguments), [*TRAIN, "--fusion", "none"], FUSION


def allocation(arguments):
    with tempfile.TemporaryDirectory(prefix="butterfly-causes-") as folder:
        source, library = os.path.join(folder, "allocates.c"), os.path.join(folder, "allocates.so")
        with open(source, "w", encoding="ascii") as file:
            file.write(ALLOCATES)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
        yield Study(arguments, ["env", f"LD_PRELOAD={library}"]), TRAIN, {"allocation_in_loop"}


def small_batch(arguments):
    yield Study(arguments), [*TRAIN, "--seq", "16", "--batch", "64", "--micro-batch", "1"], {"small_batch", "launch_overhead"}


def wrong_core(arguments):
    yield Study(arguments, ["taskset", "-c", "0"]), [*TRAIN, "--threads", "2"], {"threads_share_cpus"}


def foreign_load(arguments):
    yield Study(arguments), [*TRAIN, "--threads", str(os.cpu_count())], {"foreign_load"}


def nothing(arguments):
    yield Study(arguments), [*TRAIN, "--threads", str(os.cpu_count())], set()


def generate(arguments, addresses, *more):
    return ["generate", "-m", arguments.model, "-p", "ROMEO: I am", "-n", "150", "--ignore-end", "--workers", ",".join(addresses),
            *more]


def throttled_node(arguments):
    with workers(arguments, [[], ["--emulate", "0.3"]]) as addresses:
        yield Study(arguments), generate(arguments, addresses, "--split", "uniform"), {"straggler"}


def thin_link(arguments):
    from netlab import Lab
    with Lab(3, rate="3mbit", burst="4k") as lab, workers(arguments, [[], []], lab) as addresses:
        prefix = ["ip", "netns", "exec", lab.name(0)]
        command = generate(arguments, addresses, "--split", "uniform", "--insecure")
        yield Study(arguments, prefix), command, {"thin_link", "communication_bound"}


CAUSES = {"unfused block": unfused, "allocation in the loop": allocation, "small batch": small_batch,
          "throttled node": throttled_node, "thin link": thin_link, "thread on the wrong core": wrong_core,
          "foreign load": foreign_load, "nothing": nothing}
REMOVED = {"allocation in the loop": "take it out", "foreign load": "end it", "thread on the wrong core": "all CPUs"}


def step_seconds(study):
    return max(study["workloads"], key=lambda work: work["step_s"]["mean"] * work["tracks"][0]["steps"])["step_s"]["mean"]


def removed(arguments, name, study, command):
    """The study of the cause, and how much faster the same command is without it."""
    ratios, first, quiet = [], None, True
    for _ in range(arguments.rounds):
        with started([BUSY] * os.cpu_count() if name == "foreign load" else []):
            with_it = study.run(command)
        without = Study(arguments).run(command)
        first = first or with_it
        quiet = quiet and without["quality"]["trust"] == "quiet"
        ratios.append(step_seconds(with_it) / step_seconds(without))
    return first, statistics.median(ratios), quiet


def row(arguments, name):
    for study, command, expected in CAUSES[name](arguments):
        reached = None
        if name in REMOVED:
            found, reached, quiet = removed(arguments, name, study, command)
        else:
            found = study.run(command)
            quiet = found["quality"]["trust"] == "quiet"
        causes = found["advice"]["causes"]
        if not expected & {"foreign_load"} and len(causes) > 1 and causes[0]["id"] == "foreign_load":
            print(f"{'':<26} others use the machine, and the study says so first; the planted cause:")
            causes = causes[1:]
        first = causes[0]["id"] if causes else "nothing"
        predicted = causes[0]["speedup"] if causes else None
        remedy = REMOVED.get(name, "-")
        if expected and name not in REMOVED:
            remedies = study.tried(command)["remedies"]
            if remedies:
                remedy, reached = remedies[0]["remedy"], remedies[0]["reached"]["speedup"]
                predicted = remedies[0]["predicted"]["speedup"]
                quiet = quiet and not remedies[0]["inconclusive"]
        named = first in expected if expected else first == "nothing"
        error = f"{100 * (reached / predicted - 1):+.0f} %" if reached and predicted else "-"
        number = lambda value: f"{value:.2f}" if value else "-"  # noqa: E731
        print(f"{name:<26} {first:<20} {'yes' if named else 'NO':<6} {remedy:<22} {number(predicted):>9} {number(reached):>8} "
              f"{error:>7}  {'yes' if quiet else 'no'}", flush=True)
        return named


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(CAUSES), help="this one; may be given several times")
    arguments = parser.parse_args()
    print(f"{'planted':<26} {'first':<20} {'named':<6} {'remedy':<22} {'predicted':>9} {'reached':>8} {'error':>7}  quiet")
    named = [row(arguments, name) for name in arguments.only or CAUSES]
    return 0 if all(named) else 1


if __name__ == "__main__":
    sys.exit(main())
