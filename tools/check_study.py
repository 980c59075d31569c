#!/usr/bin/env python3
"""Whether the report of a study adds up, each figure beside its bound.

    python3 tools/check_study.py DIR...                                    folders that `butterfly study run -o DIR` wrote
    python3 tools/check_study.py --butterfly build/release/bin/butterfly   runs each form once, and checks its folder

Phases are within 2 % of the wall time of their stage, rank or scheduler. The operations of a phase that has any, and what recording
them took, are within 2 % of it; so are all operations, waits and rests of all of them together (another sum of the same spans). Bytes
of the recorded messages are within 1 % of what the channels of that process counted, over the whole recording and for each step.
Without DIR: a server under load from `butterfly bench serve`, training of TinyTransformer at 8 x 128 and 16 x 256, on two ranks
that are processes, a generation on three nodes of one process, and one on three processes. Exit code 1: something is off.
"""

import argparse
import collections
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

from recording import Recording

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(ROOT, "models/demo.gguf")
TIME, BYTES = 0.02, 0.01  # the bounds
LEAST_SHARE = 0.02  # of the wall time: what has less is not looked into
LEAST_S = 0.005  # of a few steps: what runs for the first time waits for its own code
LEAST_STEPS = 10  # for what is compared step by step: a message can leave after the step that made it
TRAIN = ["train", "--model", "tinytransformer-small", "--data", "synthetic:markov", "--log", "silent"]
ANSWER = ["-m", DEMO, "-p", "ROMEO:", "-n", "200", "--ignore-end", "-q"]


class Figures:
    def __init__(self):
        self.off = 0

    def show(self, what, found, expected, bound):
        far = abs(found - expected) > bound * expected
        self.off += far
        share = found / expected if expected else 0.0
        print(f"  {'OFF' if far else 'ok':4}{what:<66}{found:>16.6g} of {expected:<14.6g}{100 * (share - 1):+8.3f} %  within {100 * bound:.0f} %")


def check_times(work, figures):
    for track in work["tracks"]:
        name = f"{work['kind']}, {track['name']}"
        figures.show(f"{name}: phases, s", sum(phase["seconds"] for phase in track["phases"]), track["wall_s"], TIME)
        for phase in track["phases"]:
            known = phase["seconds"] - phase["rest_s"]
            if phase["seconds"] < LEAST_SHARE * track["wall_s"] or known <= 1.001 * phase["recording_s"]:
                continue  # too short, or a phase of no operation, such as the choice of a batch
            if track["steps"] < LEAST_STEPS and phase["seconds"] < LEAST_S:
                print(f"  -   {name}: {phase['name']} took {1e3 * phase['seconds']:.3f} ms in all, which is too little to say")
                continue
            figures.show(f"{name}: operations of {phase['name']}, s", known, phase["seconds"], TIME)
    # Operations are summed by name over all tracks. A stage's step on the scheduler's thread is that stage's.
    sums = collections.Counter()
    for track in work["tracks"]:
        for phase in track["phases"]:
            waits = phase["name"].startswith("wait") and phase["name"] != "wait"
            if waits or phase["name"] == "idle" or (track["scheduler"] and phase["name"] == "forward"):
                sums["beside"] += phase["seconds"]
            else:
                sums["beside"] += phase["rest_s"] + phase["recording_s"]
        sums["wall"] += track["wall_s"]
    sums["operations"] = sum(one["own_s"] for one in work["operators"])
    figures.show(f"{work['kind']}: operations, waits and rests of all, s", sums["operations"] + sums["beside"], sums["wall"], TIME)


def check_bytes(folder, report, figures):
    for path in sorted(glob.glob(os.path.join(folder, "recordings", "**", "*.bftrace"), recursive=True)):
        recording = Recording(path)
        if recording.lost or recording.dropped:
            print(f"  {os.path.basename(path)}: {recording.lost + recording.dropped} spans were lost, bytes cannot be compared")
            continue
        first, last = (recording.samples[at]["counters"] for at in (0, -1))
        begun = recording.samples[0]["at_ns"]
        for zone, counter in (("send", "wire.bytes_sent"), ("receive", "wire.bytes_received")):
            spans = sum(span.bytes for span in recording.spans if span.zone == zone and span.end >= begun)
            counted = last[counter] - first[counter]
            if counted or spans:
                figures.show(f"{os.path.basename(path)}: bytes of {zone}", spans, counted, BYTES)
    for work in report["workloads"]:
        steps = max(track["steps"] for track in work["tracks"])
        for link in work["links"] if steps >= LEAST_STEPS else []:
            key = {"send": "sent_bytes_per_step", "receive": "received_bytes_per_step"}.get(link["name"])
            use = next((one for one in work["wire"] if one["process"] == link["process"]), None)
            if key and use and use[key] > 0:
                of_process = [track["steps"] for track in work["tracks"] if track["process"] == link["process"]]
                figures.show(f"{work['kind']}, {link['process']}: bytes of {link['name']}, a step", link["bytes"] / max(of_process),
                             use[key], BYTES)


def check(folder, figures):
    with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
        report = json.load(file)
    print(f"{report['command']}\n  {report['quality']['trust']}, {len(report['processes'])} processes, "
          f"{', '.join(work['selection'] for work in report['workloads'])}")
    for work in report["workloads"]:
        check_times(work, figures)
    check_bytes(folder, report, figures)
    print(flush=True)


def study(butterfly, folder, command):
    return [butterfly, "study", "run", "-o", folder, "--warmup", "3", "--", *command]


def done(command):
    run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    if run.returncode not in (0, 3):  # a few steps may have learned nothing
        sys.exit(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[-1000:]}")


def serve(butterfly, folder):
    command = study(butterfly, folder, ["serve", "-m", DEMO, "--listen", "127.0.0.1:0", "--journal", "off"])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            address = next(line.split("http://")[1].split()[0].split("/")[0] for line in server.stderr if line.startswith("ready at"))
            done([butterfly, "bench", "serve", "--url", f"http://{address}", "--requests", "60", "--rate", "10", "--json"])
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=120)
        finally:
            server.kill()
    if server.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {server.returncode}")


def on_workers(butterfly, folder):
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(2):
            worker = stack.enter_context(subprocess.Popen([butterfly, "worker", "--listen", "127.0.0.1:0", "--threads", "1"],
                                                          stderr=subprocess.PIPE, text=True))
            stack.callback(worker.kill)
            addresses.append(next(line.split()[2] for line in worker.stderr if line.startswith("listening on ")))
        done(study(butterfly, folder, ["generate", *ANSWER, "--split", "uniform", "--workers", ",".join(addresses)]))


def forms(butterfly):
    def of(command):
        return lambda folder: done(study(butterfly, folder, command))

    yield "serve", lambda folder: serve(butterfly, folder)
    yield "8x128", of([*TRAIN, "--batch", "8", "--seq", "128", "--steps", "12"])
    yield "16x256", of([*TRAIN, "--batch", "16", "--seq", "256", "--steps", "8"])
    yield "ranks", of([*TRAIN, "--batch", "8", "--seq", "64", "--steps", "16", "--ranks", "2", "--engine", "tcp", "--threads", "1",
                       "--parallel.shared-memory", "false"])
    yield "nodes", of(["generate", *ANSWER, "--nodes", "3"])
    yield "workers", lambda folder: on_workers(butterfly, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", default=os.path.join(ROOT, "build/release/bin/butterfly"))
    parser.add_argument("--only", action="append", help="one of serve, 8x128, 16x256, ranks, nodes, workers; may be given several times")
    parser.add_argument("--keep", help="folder that the studies are left in")
    parser.add_argument("folder", nargs="*")
    arguments = parser.parse_args()
    figures = Figures()
    for folder in arguments.folder:
        check(folder, figures)
    with tempfile.TemporaryDirectory(prefix="butterfly-study-") as scratch:
        for name, run in forms(arguments.butterfly) if not arguments.folder else ():
            if arguments.only and name not in arguments.only:
                continue
            folder = os.path.join(arguments.keep or scratch, name)
            run(folder)
            check(folder, figures)
    print("everything adds up" if not figures.off else f"{figures.off} figures are off")
    return 1 if figures.off else 0


if __name__ == "__main__":
    sys.exit(main())
