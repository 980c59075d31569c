#!/usr/bin/env python3
"""Training steps of `butterfly train` and of PyTorch in turns, and the ratio of their medians.

    python3 tools/bench_training.py --python PEER/bin/python               some shapes; --full: all of them; --quick: one
    python3 tools/bench_training.py --python PEER/bin/python --memory      peak memory against the length of the sequences
    python3 tools/bench_training.py --python PEER/bin/python --scaling     two ranks of one thread; DDP over Gloo
    python3 tools/bench_training.py --python PEER/bin/python --sharded     ranks that hold parts of the state; FSDP2 over Gloo
    python3 tools/bench_training.py --ablation                             fused against unfused
    python3 tools/bench_training.py --deterministic                        what --deterministic costs

PEER is a virtual environment with PyTorch (pip install torch==2.13.0 numpy); torch.compile needs g++. Without it, butterfly
is measured alone. Both sides train the same shapes on random tokens (training_peer.py): forward, backward, clipping to norm
1 and AdamW in each step. All ways take turns in every round, and the one that goes first changes. butterfly is a fresh
process in each round, whose first two steps are not counted; PyTorch stays, and rests while it is not its turn; its first
three are not counted. The table has the step time in ms as median (smallest-largest) over all steps of all rounds.

`memory` is the largest resident set of the process in decimal GB; every process is refused more data than --memory-limit, so
that one that wants more fails alone. `matmuls` is the time of the step's matmuls alone, one by one, in PyTorch
(oneDNN in bf16, MKL in fp32), as share of butterfly's step. A ratio over 1 means that butterfly is faster.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile

from bench_vs_llamacpp import machine
from training_sides import Butterfly, Failed, Peer, Peers, memory_limit

SHAPES = {  # model, sequences, their tokens
    "small-8x128": ("tinytransformer-small", 8, 128),
    "small-16x256": ("tinytransformer-small", 16, 256),
    "medium-16x512": ("tinytransformer-medium", 16, 512),
    "gpt2-4x64": ("gpt2-124m", 4, 64),
    "gpt2-4x256": ("gpt2-124m", 4, 256),
    "tiny-8x128": ("tinytransformer-tiny", 8, 128),
}
FUSIONS = ("qkv", "swiglu", "attention", "cross_entropy", "adamw")
OURS = "butterfly"
RANKS = {"threads": ["--engine", "inproc"], "processes": ["--engine", "tcp"],
         "over TCP": ["--engine", "tcp", "--parallel.shared-memory", "false"]}


class Samples:
    """What one way of training showed over the rounds."""

    def __init__(self):
        self.step_s, self.rows, self.peak_bytes, self.failure = [], [], 0, None

    def add(self, result):
        self.step_s += result["step_s"]
        self.peak_bytes = max(self.peak_bytes, result.get("peak_bytes", 0))
        self.rows.append(result)

    @property
    def median_s(self):
        return statistics.median(self.step_s)

    def mean_of(self, key):
        return statistics.median(row["summary"][key] for row in self.rows)

    def cells(self, tokens):
        if self.failure:
            return f"failed: {self.failure}"
        low, high = 1e3 * min(self.step_s), 1e3 * max(self.step_s)
        return f"{1e3 * self.median_s:9.1f} ({low:.1f}-{high:.1f}) ms {tokens / self.median_s:9.0f} tokens/s"

    def notes(self):
        verdicts = {row["verdict"] for row in self.rows if row.get("verdict", "valid") != "valid"}
        return "".join(f"  {verdict}" for verdict in sorted(verdicts))


def in_turns(ways, rounds):
    """{way: Samples}; `ways` are functions that train for a round. One that fails is not asked again."""
    samples = {way: Samples() for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(list(ways)):
            if samples[way].failure:
                continue
            try:
                samples[way].add(ways[way]())
            except Failed as failure:
                samples[way].failure = str(failure)
    return samples


def title(text):
    print(f"\n{text}", flush=True)


def compare(arguments, name, precision, threads, eager_fp32):
    """One shape beside PyTorch; `eager_fp32` remembers what eager fp32 took."""
    model, batch, seq = SHAPES[name]
    cell = {"model": model, "batch": batch, "seq": seq, "precision": precision, "threads": threads}
    ours = Butterfly(arguments, **cell)
    with contextlib.ExitStack() as stack:
        peers = {way: stack.enter_context(Peer(arguments, **cell, compiled=way == "compile")) for way in arguments.peers}
        ways = {OURS: lambda: ours.steps(arguments.steps), **{way: peer.steps_of(arguments.steps) for way, peer in peers.items()}}
        samples = in_turns(ways, arguments.rounds)
        matmuls = next((peer.ask("matmuls")["matmuls_s"] for way, peer in peers.items() if not samples[way].failure), None)
    title(f"{name}, {precision}, {threads} thread{'s' if threads > 1 else ''}")
    us = samples[OURS]
    if us.failure is None:
        for way, peer in peers.items():
            if not samples[way].failure and peer.hello["flops_per_token"] != us.mean_of("flops_per_token"):
                raise SystemExit(f"{way} takes {peer.hello['flops_per_token']} FLOPs for a token, butterfly "
                                 f"{us.mean_of('flops_per_token')}: not the same model")
    for way, of_way in samples.items():
        line = f"  {way:<10} {of_way.cells(batch * seq)}"
        if not of_way.failure:
            line += f"  memory {of_way.peak_bytes * 1e-9:6.2f}"
        if way == OURS and not us.failure:
            line += f"  MFU {100 * us.mean_of('mfu'):.1f} % of {us.mean_of('peak_gflops'):.0f} GFLOP/s"
            line += f"  matmuls {100 * matmuls / us.median_s:.0f} %" if matmuls else ""
            slow = eager_fp32.get((name, threads))
            line += f"  {slow / us.median_s:.2f} x eager fp32" if precision == "bf16" and slow else ""
        elif not of_way.failure and not us.failure:
            line += f"  ratio {of_way.median_s / us.median_s:.2f}"
        print(line + of_way.notes(), flush=True)
    if precision == "fp32" and "eager" in samples and not samples["eager"].failure:
        eager_fp32[name, threads] = samples["eager"].median_s


def shapes(arguments):
    eager_fp32 = {}
    for name, precisions, threads, peers in arguments.cells:
        arguments.peers = peers if arguments.python else ()
        for precision in precisions:
            compare(arguments, name, precision, threads, eager_fp32)


def memory(arguments):
    """Two steps at each length: the second has everything that later ones have."""
    title(f"peak memory in GB and ms of a step, tinytransformer-small, batch 8, {arguments.precisions[0]}, 2 threads")
    for seq in (128, 256, 512, 1024):
        cell = {"model": "tinytransformer-small", "batch": 8, "seq": seq, "precision": arguments.precisions[0], "threads": 2}
        for recompute in ("none", "selective", "block") if arguments.full else ("none", "block"):
            ours = Butterfly(arguments, **cell, extra=["--recompute", recompute], warm_up=1)
            report_memory(f"butterfly, recompute {recompute}", seq, lambda ours=ours: ours.steps(1))
        for way in (("eager", "compile") if arguments.full else ("eager",)) if arguments.python else ():
            with Peer(arguments, **cell, compiled=way == "compile", warm_up=1) as peer:
                report_memory(way, seq, peer.steps_of(1))


def report_memory(way, seq, train):
    samples = in_turns({way: train}, 1)[way]
    told = samples.cells(8 * seq) if samples.failure else f"{samples.peak_bytes * 1e-9:7.2f} GB {1e3 * samples.median_s:9.0f} ms"
    print(f"  seq {seq:<5} {way:<32} {told}{samples.notes()}", flush=True)


def ablation(arguments):
    for name in arguments.shapes or (("small-8x128", "gpt2-4x64") if arguments.full else ("small-8x128",)):
        model, batch, seq = SHAPES[name]
        for precision in arguments.precisions:
            fused = {"all": "all", **{f"without {f}": ",".join(g for g in FUSIONS if g != f) for f in FUSIONS}, "none": "none"}
            ways = {}
            for way, fusion in fused.items():
                ours = Butterfly(arguments, model, batch, seq, precision, 2, extra=["--fusion", fusion])
                ways[way] = lambda ours=ours: ours.steps(arguments.steps)
            samples = in_turns(ways, arguments.rounds)
            title(f"fusion, {name}, {precision}, 2 threads: how much longer a step is")
            for way, of_way in samples.items():
                line = f"  {way:<24} {of_way.cells(batch * seq)}"
                if not of_way.failure and not samples["all"].failure:
                    line += f"  {of_way.median_s / samples['all'].median_s:.2f} x"
                    line += "".join(f"  {key} {1e3 * of_way.mean_of(key + '_s'):.1f}" for key in ("forward", "backward", "optimizer"))
                    line += f" ms  memory {of_way.peak_bytes * 1e-9:.2f}"
                print(line + of_way.notes(), flush=True)


def side_by_side(sides, steps):
    """Runs of one rank each at the same time; the tokens of all."""
    running = [side.start(steps) for side in sides]
    results = [side.finish(run) for side, run in zip(sides, running)]
    return {"step_s": [sum(pair) / len(pair) for pair in zip(*(r["step_s"] for r in results))],
            "peak_bytes": sum(r["peak_bytes"] for r in results), "summary": results[0]["summary"], "verdict": results[0]["verdict"]}


def scaling(arguments):
    """Two ranks of one thread beside two runs that know nothing of each other: the same work on each core."""
    for name in arguments.shapes or ("small-8x128", *(["gpt2-4x64"] if arguments.full else [])):
        model, batch, seq = SHAPES[name]
        for precision in arguments.precisions:
            one = {"model": model, "batch": batch, "seq": seq, "precision": precision, "threads": 1}
            two = {**one, "batch": 2 * batch}
            alone = [Butterfly(arguments, **one), Butterfly(arguments, **one, extra=["--seed", "2"])]
            ways = {"2 runs of 1": lambda alone=alone: side_by_side(alone, arguments.steps)}
            for engine, extra in RANKS.items():
                ours = Butterfly(arguments, **two, extra=["--ranks", "2", *extra])
                ways[f"2 ranks, {engine}"] = lambda ours=ours: ours.steps(arguments.steps)
            with contextlib.ExitStack() as stack:
                if arguments.python:
                    gloo = stack.enter_context(Peers(arguments, 2, **one))
                    ways["PyTorch, DDP over Gloo"] = lambda: gloo.steps(arguments.steps, "steps")
                    ways["PyTorch, no exchange"] = lambda: gloo.steps(arguments.steps, "alone")
                samples = in_turns(ways, arguments.rounds)
            title(f"two ranks, {name} on each, {precision}, 1 thread each")
            show_scaling(samples, 2 * batch * seq)


def sharded(arguments):
    """Two ranks of one thread, as processes: each strategy beside PyTorch's."""
    pairs = {"ddp": "none", "zero2": "grad", "zero3": "full"}
    for name in arguments.shapes or ("small-8x128",):
        model, batch, seq = SHAPES[name]
        for precision in arguments.precisions:
            one = {"model": model, "batch": batch, "seq": seq, "precision": precision, "threads": 1}
            two = {**one, "batch": 2 * batch}
            ways = {}
            with contextlib.ExitStack() as stack:
                for strategy, theirs in pairs.items():
                    ours = Butterfly(arguments, **two, extra=["--ranks", "2", "--engine", "tcp", "--micro-batch", str(batch),
                                                              "--parallel", strategy, "--mirror", "0"])
                    ways[strategy] = lambda ours=ours: ours.steps(arguments.steps)
                    if arguments.python:
                        peers = stack.enter_context(Peers(arguments, 2, sharding=theirs, **one))
                        ways[f"PyTorch {strategy}"] = lambda peers=peers: peers.steps(arguments.steps, "steps")
                samples = in_turns(ways, arguments.rounds)
            title(f"parts of the state, {name} on each of 2 ranks (processes), {precision}, 1 thread each")
            for way, of_way in samples.items():
                line = f"  {way:<16} {of_way.cells(2 * batch * seq)}"
                ours = samples.get(way.removeprefix("PyTorch "))
                if way.startswith("PyTorch") and not of_way.failure and not ours.failure:
                    line += f"  ratio {of_way.median_s / ours.median_s:.2f}"
                elif not of_way.failure:
                    line += f"  exposed {1e3 * of_way.mean_of('communication_exposed_s'):.1f} ms"
                print(line + of_way.notes(), flush=True)


def show_scaling(samples, tokens):
    alone = {True: samples["2 runs of 1"], False: samples.get("PyTorch, no exchange")}
    for way, of_way in samples.items():
        line = f"  {way:<24} {of_way.cells(tokens)}"
        base = alone["PyTorch" not in way]
        if not of_way.failure and not base.failure and of_way is not base:
            line += f"  {100 * base.median_s / of_way.median_s:.1f} % of apart"
            if "PyTorch" in way:
                line += f"  communication {100 * (1 - base.median_s / of_way.median_s):.1f} % of a step"
            else:
                exposed, hidden = of_way.mean_of("communication_exposed_s"), of_way.mean_of("communication_hidden_s")
                line += (f"  exposed {1e3 * exposed:.1f} ms ({100 * exposed / of_way.mean_of('avg_step_time'):.1f} % of a step), "
                         f"hidden {1e3 * hidden:.1f} ms, {of_way.mean_of('network_kb_per_s') / 1000:.1f} MB/s")
        print(line + of_way.notes(), flush=True)


def deterministic(arguments):
    """Also with micro-batches of two sequences: each is a leaf of the canonical tree."""
    name = (arguments.shapes or ("small-8x128",))[0]
    model, batch, seq = SHAPES[name]
    for precision in arguments.precisions:
        for ranks, threads, micro in ((1, 2, batch), (1, 2, 2), (2, 1, batch), (2, 1, 2)):
            extra = ["--ranks", str(ranks), "--micro-batch", str(micro)]
            ways = {}
            for way, more in (("default", []), ("deterministic", ["--deterministic"])):
                ours = Butterfly(arguments, model, ranks * batch, seq, precision, threads, extra=[*extra, *more])
                ways[way] = lambda ours=ours: ours.steps(arguments.steps)
            samples = in_turns(ways, arguments.rounds)
            title(f"{name} on each of {ranks} rank{'s' if ranks > 1 else ''} x {threads} thread{'s' if threads > 1 else ''}, "
                  f"micro-batches of {micro}, {precision}")
            for way, of_way in samples.items():
                line = f"  {way:<24} {of_way.cells(ranks * batch * seq)}"
                if way != "default" and not of_way.failure and not samples["default"].failure:
                    line += f"  costs {100 * (of_way.median_s / samples['default'].median_s - 1):+.1f} %"
                print(line + of_way.notes(), flush=True)


def cells_of(arguments):
    """(shape, precisions, threads, peers) in their order."""
    both = ("eager", "compile")
    if arguments.shapes or arguments.full:
        names = arguments.shapes or [name for name in SHAPES if not name.startswith("tiny")]
        return [(name, arguments.precisions, threads, arguments.peers or both)
                for name in names for threads in arguments.threads]
    if arguments.quick:
        return [("tiny-8x128", arguments.precisions, 2, arguments.peers or ("eager",))]
    return [("small-8x128", arguments.precisions, 2, arguments.peers or both),
            ("small-8x128", arguments.precisions, 1, arguments.peers or ("eager",)),
            ("gpt2-4x64", arguments.precisions, 2, arguments.peers or ("eager",))]


def torch_version(python):
    """Nothing where there is no PyTorch."""
    if not python:
        return None
    with contextlib.suppress(OSError):
        done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=120, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=os.path.dirname(os.path.abspath(__file__)),
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, what in (("memory", "peak memory against the length of sequences"), ("ablation", "fused against unfused"),
                       ("scaling", "two ranks against two runs"), ("sharded", "strategies against FSDP2"), ("deterministic", "cost of --deterministic")):
        parser.add_argument(f"--{name}", action="store_true", help=what)
    parser.add_argument("--full", action="store_true", help="all shapes (hours in fp32)")
    parser.add_argument("--quick", action="store_true", help="one little shape, to see that all works")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="with --shapes or --full")
    parser.add_argument("--peers", nargs="+", choices=("eager", "compile"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each round and way")
    parser.add_argument("--memory-limit", type=float, default=memory_limit(), help="GB of data of each process (default: what is free)")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    parser.add_argument("--python", default=sys.executable, help="interpreter of a virtual environment with PyTorch")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 1, 2
        arguments.shapes = arguments.shapes or (["tiny-8x128"] if arguments.ablation or arguments.scaling or arguments.sharded or arguments.deterministic else None)
    arguments.cells = cells_of(arguments)
    version = torch_version(arguments.python)
    print(f"machine {machine()}\ncommit  {commit()}\ncommand {' '.join(sys.argv)}\n{arguments.rounds} rounds of {arguments.steps} steps")
    if version:
        print(f"peer    PyTorch {version}; a ratio over 1 means that butterfly is faster")
    else:
        print(f"PyTorch is missing ({arguments.python}): butterfly alone, no ratios")
        arguments.python = None
    # Peaks are measured now: on a shared machine those of another hour are those of another machine.
    with tempfile.TemporaryDirectory() as cache, contextlib.suppress(BrokenPipeError):
        os.environ["XDG_CACHE_HOME"] = cache
        for threads in (1, 2):  # into the cache: measuring takes memory, which is not that of training
            Butterfly(arguments, *SHAPES["tiny-8x128"], "fp32", threads).steps(1)
        chosen = [mode for mode in (memory, ablation, scaling, sharded, deterministic) if getattr(arguments, mode.__name__)]
        for mode in chosen or [shapes]:
            mode(arguments)


if __name__ == "__main__":
    main()
