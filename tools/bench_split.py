#!/usr/bin/env python3
"""What splitting one model over worker processes of this machine gives, and whether that was predicted.

    build/release/bin/butterfly convert --random llama-1.1b --type q4_0 /tmp/1b/llama-1.1b-q4_0.gguf
    python3 tools/bench_split.py -m /tmp/1b/llama-1.1b-q4_0.gguf               two 1-thread workers against one process
    python3 tools/bench_split.py -m /tmp/1b/llama-1.1b-q4_0.gguf --beside      two tied workers against two processes at once
    python3 tools/bench_split.py -m /tmp/1b/llama-1.1b-q4_0.gguf --links       the same over slower links, as root
    python3 tools/bench_split.py -m /tmp/1b/llama-1.1b-q4_0.gguf --emulate 0.25   four emulated nodes

All ways take turns in every round on `butterfly bench model`; each gives tokens/s as median (smallest-largest) and its
ratio to one 1-thread process, or to the sum of two that run at the same time. Workers run all the time, rest while it is another way's turn, and read the model from its
folder. Where a way was predicted, the error is that of the program: measured / predicted - 1. `simulated` is the time of
one whole run, prompts and answers, by the simulator for the same plan: its error is measured / simulated - 1.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

from bench_vs_llamacpp import machine

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "faults"))

PROCESS = "1 process"
LINKS = {"1 Gbit/s": ("1gbit", {}, "64k"), "100 Mbit/s": ("100mbit", {}, "4k"), "1 Gbit/s, 5 ms": ("1gbit", {1: (5, 0)}, "64k")}
SPLITS = {"pipeline": "uniform", "tensor": "tensor"}


def tied_to(cpu):
    return ["taskset", "-c", str(cpu)]


class Workers:
    """1-thread workers on loopback, or each in its own namespace of a lab, where node 0 is the coordinator's."""

    def __init__(self, arguments, count, lab=None, extra=(), cpus=()):
        self.lab, self.cpus, self.running, self.addresses = lab, cpus, [], []
        for number in range(1, count + 1):
            listen = f"{lab.address(number)}:7000" if lab else "127.0.0.1:0"
            command = [arguments.butterfly, "worker", "--listen", listen, "--threads", "1", *extra, "--model-dir",
                       os.path.dirname(os.path.abspath(arguments.model))]
            command += ["--insecure"] if lab else []
            command += ["--emulate", str(arguments.emulate)] if arguments.emulate < 1 else []
            worker = subprocess.Popen([*self.inside(number), *command], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True)
            self.running.append(worker)
            self.addresses.append(self._address(worker))

    def inside(self, node):
        if self.cpus:
            return tied_to(self.cpus[node - 1])
        return ["ip", "netns", "exec", self.lab.name(node)] if self.lab else []

    @staticmethod
    def _address(worker):
        for line in worker.stderr:
            if line.startswith("listening on "):
                return line.split()[2]
        raise SystemExit("a worker ended before it listened")

    def options(self, split):
        return ["--workers", ",".join(self.addresses), "--split", split, "--measure-links", *(["--insecure"] if self.lab else [])]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.running:
            worker.terminate()
        for worker in self.running:
            worker.wait(timeout=30)


def start(arguments, way, prefix=()):
    command = [*prefix, arguments.butterfly, "bench", "model", "-m", arguments.model, "--json", "--rounds", "1",
               "--prefill", str(arguments.prompt), "--decode", str(arguments.tokens), *way]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process):
    out, err = process.communicate(timeout=600)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(process.args)} ended with {process.returncode}: {err[-1000:]}")
    return json.loads(out)["results"][0]


def run(arguments, way, prefix=()):
    return result_of(start(arguments, way, prefix))


def run_at_once(arguments, cpus):
    """The rates of processes of one thread, each tied to a CPU, added up."""
    results = [result_of(process) for process in [start(arguments, ["--threads", "1"], tied_to(cpu)) for cpu in cpus]]
    return {rate: [sum(result[rate][0] for result in results)] for rate in ("prefill_tokens_per_s", "decode_tokens_per_s")}


def measure(arguments, ways, prefix=()):
    """{way: [result of each round]}; the order turns round with every round."""
    results = {way: [] for way in ways}
    for number in range(arguments.rounds + 1):  # the first is not counted: the workers load and measure themselves
        for way in ways if number % 2 == 0 else reversed(ways):
            result = run(arguments, ways[way], prefix)
            if number > 0:
                results[way].append(result)
    return results


def show(title, results, baseline):
    print(f"\n{title}")
    for phase in ("prefill", "decode"):
        base = statistics.median(r[f"{phase}_tokens_per_s"][0] for r in results[baseline]) if baseline else None
        for way, rounds in results.items():
            values = [r[f"{phase}_tokens_per_s"][0] for r in rounds]
            line = f"  {phase:<8} {way:<34} {statistics.median(values):7.1f} ({min(values):.1f}-{max(values):.1f}) tokens/s"
            if base:
                line += f"  ratio {statistics.median(values) / base:.2f}"
            predicted = [r["predicted"] for r in rounds if f"{phase}_error" in r.get("predicted", {})]
            if predicted:
                errors = [p[f"{phase}_error"] for p in predicted]
                line += f"  predicted {statistics.median(p[f'{phase}_tokens_per_s'] for p in predicted):.1f}"
                line += f"  error {100 * statistics.median(errors):+.0f} % ({100 * min(errors):+.0f} to {100 * max(errors):+.0f})"
            print(line, flush=True)
    for way, rounds in results.items():
        exchanges = [r["exchange"] for r in rounds if "exchange" in r]
        if exchanges:
            few, many = ([e[size] for e in exchanges] for size in ("one_row_s", "rows_s"))
            print(f"  exchange  {way:<33} measured before: {1e6 * statistics.median(few):.0f} us ({1e6 * min(few):.0f}-{1e6 * max(few):.0f})"
                  f", of {exchanges[0]['rows']} rows {1e3 * statistics.median(many):.2f} ms ({1e3 * min(many):.2f}-{1e3 * max(many):.2f})")
    for way, rounds in results.items():
        simulated = [r["predicted"] for r in rounds if "simulated_error" in r.get("predicted", {})]
        if simulated:
            print(f"  whole run {way:<33} simulated {statistics.median(s['simulated_s'] for s in simulated):.2f} s  error "
                  f"{100 * statistics.median(s['simulated_error'] for s in simulated):+.0f} %", flush=True)


def two_workers(arguments):
    with Workers(arguments, 2) as workers, Workers(arguments, 2, extra=["--no-shared-memory"]) as apart:
        ways = {PROCESS: ["--threads", "1"],
                "2 workers, pipeline": workers.options("uniform"),
                "2 workers, tensor, loopback": apart.options("tensor"),
                "2 workers, tensor, shared memory": workers.options("tensor")}
        results = measure(arguments, ways)
        show("one request", results, PROCESS)
        ways = {"1 process, 4 sequences": ["--threads", "1", "--sequences", "4"],
                "2 workers, pipeline, 8 sequences": [*workers.options("balanced"), "--sequences", "8"]}
        results = measure(arguments, ways)
        show("several requests", results, "1 process, 4 sequences")


def beside_two(arguments):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    both = "2 processes at once"
    with Workers(arguments, 2, cpus=cpus) as workers, Workers(arguments, 2, cpus=cpus, extra=["--no-shared-memory"]) as apart:
        ways = {"tensor, loopback": apart.options("tensor"), "tensor, shared memory": workers.options("tensor")}
        results = {way: [] for way in [both, *ways]}
        for number in range(arguments.rounds + 1):  # the first is not counted, as above
            found = {both: run_at_once(arguments, cpus), **{way: run(arguments, options) for way, options in ways.items()}}
            for way in found if number > 0 else ():
                results[way].append(found[way])
    show("one request over two workers of one thread, each tied to a CPU", results, both)


def over_links(arguments):
    from netlab import Lab
    for name in arguments.links or LINKS:
        rate, slow, burst = LINKS[name]
        with Lab(3, rate=rate, slow=slow, burst=burst) as lab, Workers(arguments, 2, lab) as workers:
            ways = {f"2 workers, {way}": workers.options(SPLITS[way]) for way in arguments.splits}
            results = measure(arguments, ways, workers.inside(0))
            show(f"links of {name}", results, None)


def emulated(arguments):
    with Workers(arguments, 4) as workers:
        ways = {"4 emulated nodes, pipeline": workers.options("uniform"),
                "4 emulated nodes, tensor": workers.options("tensor")}
        results = measure(arguments, ways)
        show(f"nodes emulated at {arguments.emulate} of one thread", results, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded")
    parser.add_argument("--beside", action="store_true", help="two workers against two processes, all tied to a CPU each")
    parser.add_argument("--links", nargs="*", choices=LINKS, metavar="LINK",
                        help=f"two workers in network namespaces, over links of {', '.join(map(repr, LINKS))}; none named: all")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS), help="over links; without it: both")
    parser.add_argument("--emulate", type=float, default=1.0, help="four workers of this share of a thread's speed")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    arguments = parser.parse_args()
    # Rates are measured now: on a shared machine those of another hour are those of another machine.
    cache = tempfile.TemporaryDirectory()
    os.environ["XDG_CACHE_HOME"] = cache.name
    print(f"machine {machine()}\nmodel   {os.path.basename(arguments.model)}, {arguments.rounds} rounds, prompt "
          f"{arguments.prompt}, {arguments.tokens} decoded")
    with contextlib.suppress(BrokenPipeError):
        if arguments.links is not None:
            over_links(arguments)
        elif arguments.beside:
            beside_two(arguments)
        elif arguments.emulate < 1:
            emulated(arguments)
        else:
            two_workers(arguments)


if __name__ == "__main__":
    main()
