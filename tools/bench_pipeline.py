#!/usr/bin/env python3
"""One request on a pipeline of two 1-thread workers against one 1-thread process, in turns, on one GGUF file.

    build/release/bin/butterfly convert --random llama-1.1b --type q4_0 /tmp/1b/llama-1.1b-q4_0.gguf
    python3 tools/bench_pipeline.py -m /tmp/1b/llama-1.1b-q4_0.gguf --rounds 5

The workers run all the time, rest while it is the process's turn, and read the model from its folder. Prints tokens/s
as median (smallest-largest) and the ratio of the medians.
"""

import argparse
import json
import os
import statistics
import subprocess

from bench_vs_llamacpp import machine

PHASES = ("prefill", "decode")


def start_worker(arguments):
    worker = subprocess.Popen([arguments.butterfly, "worker", "--listen", "127.0.0.1:0", "--threads", "1",
                               "--model-dir", os.path.dirname(os.path.abspath(arguments.model))],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in worker.stderr:
        if line.startswith("listening on "):
            return worker, line.split()[2]
    raise SystemExit("a worker ended before it listened")


def measure(arguments, where):
    prompt = "".join(chr(97 + i * 7 % 26) for i in range(arguments.prompt))
    done = subprocess.run([arguments.butterfly, "generate", "-m", arguments.model, "-p", prompt, "-n",
                           str(arguments.tokens), "--ignore-end", "--json", "--quiet", *where],
                          stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout)
    return report["tokens"], {phase: report[f"{phase}_tokens_per_s"] for phase in PHASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256, help="characters of the prompt")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    arguments = parser.parse_args()
    workers = [start_worker(arguments) for _ in range(2)]
    try:
        ways = {"1 process, 1 thread": ["--threads", "1"],
                "2 workers, 1 thread": ["--workers", ",".join(address for _, address in workers)]}
        samples = {way: {phase: [] for phase in PHASES} for way in ways}
        for number in range(arguments.rounds + 1):  # the first is not counted: the workers load
            texts = []
            for way in (ways if number % 2 == 0 else reversed(ways)):
                tokens, speeds = measure(arguments, ways[way])
                texts.append(tokens)
                for phase in PHASES if number > 0 else ():
                    samples[way][phase].append(speeds[phase])
            if texts[0] != texts[1]:
                raise SystemExit("the two ways gave different tokens")
    finally:
        for worker, _ in workers:
            worker.terminate()
            worker.wait(timeout=30)
    print(f"machine {machine()}\nmodel   {os.path.basename(arguments.model)}, {arguments.rounds} rounds, same tokens both ways")
    one, two = samples
    for phase in PHASES:
        cells = [f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})"
                 for v in (samples[one][phase], samples[two][phase])]
        ratio = statistics.median(samples[two][phase]) / statistics.median(samples[one][phase])
        print(f"{phase:<8} {one} {cells[0]:>22}   {two} {cells[1]:>22}   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
