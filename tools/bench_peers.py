#!/usr/bin/env python3
"""Butterfly beside its peers on this machine, in turns: llama.cpp for inference, PyTorch for training.

    python3 tools/bench_peers.py --install                      builds the peers that are missing (llama.cpp: 10 to 30 minutes)
    python3 tools/bench_peers.py --rounds 5 --markdown table.md     all types, 1 and 2 threads; an hour
    python3 tools/bench_peers.py --only inference --types q4_0 q8_0 --threads 1

Peers live in virtual environments below --home: llama-cpp-python built for this CPU with AMX switched off and, where the
CPU has AMX, once more with everything on; PyTorch. What is not there is named and left out. Inference: random weights of
llama-1.1b in each type (MXFP4: of olmoe-1b-7b, whose experts have it), a prompt of 512 tokens in one batch, then 128 single
tokens; fresh processes, in turns. A ratio over 1 means that butterfly is faster; its interval is that of the ratios of single
rounds. Shares of the roof are of what this machine was measured to do a moment before: integer arithmetic (prefill of
quantised types), fp32 (prefill of others), memory (decode). Training: tools/bench_training.py, whose output follows.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys

from bench_training import commit, torch_version
from bench_vs_llamacpp import PHASES, cell, compare, machine, run_json

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ("q4_0", "q8_0", "int8", "q4_k_m", "q5_k_m", "q6_k", "iq4_xs", "mxfp4", "bf16")
SHAPES = {"mxfp4": "olmoe-1b-7b"}  # llama.cpp has that type for experts alone
SHAPE = "llama-1.1b"
FLOATS = {"f32", "f16", "bf16"}
LLAMA = "llama-cpp-python==0.3.36"
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def has_amx():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        return any(line.startswith("flags") and " amx_int8" in line for line in info)


def environments(home):
    """{peer of inference: its Python}, PyTorch's Python."""
    peers = {"llama.cpp": home / "llama" / "bin" / "python"}
    if has_amx():
        peers["llama.cpp, AMX"] = home / "llama-amx" / "bin" / "python"
    return peers, home / "torch" / "bin" / "python"


def install(home):
    peers, torch = environments(home)
    for name, python in peers.items():
        if python.exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        off = "" if "AMX" in name else f" -DCMAKE_C_FLAGS='{NO_AMX}' -DCMAKE_CXX_FLAGS='{NO_AMX}'"
        # The wheel is built anew for each: pip would take the one from its cache.
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-binary", "llama-cpp-python", LLAMA], check=True,
                       env=dict(os.environ, CMAKE_ARGS=f"-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF{off}"))
    if not torch.exists():
        subprocess.run([sys.executable, "-m", "venv", torch.parent.parent], check=True)
        subprocess.run([torch, "-m", "pip", "install", "-q", "torch==2.13.0", "numpy", "--extra-index-url",
                        "https://download.pytorch.org/whl/cpu"], check=True)


def cpu_times():
    with open("/proc/stat", encoding="ascii") as file:
        return [int(word) for word in file.readline().split()[1:9]]


class Disturbance:
    """What the host took, of the CPU time that was wanted since this was made."""

    def __init__(self):
        self.begin = cpu_times()

    def text(self):
        user, nice, system, _, _, irq, soft, stolen = (now - then for now, then in zip(cpu_times(), self.begin))
        wanted = user + nice + system + irq + soft + stolen
        return f"{100 * stolen / max(wanted, 1):.1f} % of the CPU time taken by the host"


def roofs(butterfly, threads):
    """The peaks of the instruction set in use, measured now."""
    report = run_json(["taskset", "-c", f"0-{threads - 1}", butterfly, "inspect", "--machine", "--json"], "inspect --machine")
    peaks = next(peak for peak in report["peaks"] if peak["isa"] == report["isa"])
    return report["isa"], peaks["team"]


def share(kind, phase, result, roof):
    if phase == "decode":
        return result["decode_weight_gb_per_s"] / roof["memory_read_gb_per_s"]
    return result["prefill_gflops"] / roof["fp32_gflops" if kind in FLOATS else "int8_gops"]


def ratio(ours, theirs):
    pairs = [mine / other for mine, other in zip(ours, theirs)]
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} ({min(pairs):.2f}-{max(pairs):.2f})"


def inference(arguments, peers, say):
    names = list(peers)
    say("\n| type | threads | phase | butterfly, tokens/s | of the roof |" + "".join(f" {name} | ratio |" for name in names))
    say("|---|--:|---|--:|--:|" + "--:|--:|" * len(names))
    flags, failures = {}, {}
    for kind in arguments.types:
        shape = SHAPES.get(kind, SHAPE)
        model = arguments.home / f"{shape}-{kind}.gguf"
        if not model.exists():
            subprocess.run([arguments.butterfly, "convert", "--random", shape, "--type", kind, model], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = compare(argparse.Namespace(model=str(model), threads=arguments.threads, rounds=arguments.rounds, samples=1,
                                            butterfly=arguments.butterfly, peers={name: str(peers[name]) for name in names}))
        flags.update(report["peers"])
        failures.update(report["failed"])
        for threads in arguments.threads:
            _, roof = roofs(arguments.butterfly, threads)
            programs = report["samples"][threads]
            for phase in PHASES:
                ours = programs["butterfly"][phase]
                row = f"| {kind} | {threads} | {phase} | {cell(ours)} | {100 * share(kind, phase, report['butterfly'][threads], roof):.0f} % |"
                for name in names:
                    if name in report["failed"]:
                        row += " failed | |"
                    else:
                        row += f" {cell(programs[name][phase])} | {ratio(ours, programs[name][phase])} |"
                say(row)
    say("")
    for failure in failures.values():
        say(f"{failure}.")
    for name, peer in flags.items():
        say(f"{name}: llama-cpp-python {peer['version']}, {' '.join(w for w in peer['system'].split() if w.isupper())}")


def training(arguments, python, say):
    say("\n```text")
    command = [sys.executable, str(HERE / "bench_training.py"), "--python", str(python), "--butterfly", arguments.butterfly,
               "--rounds", str(arguments.rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    say(done.stdout.rstrip() + "\n```")
    if done.returncode != 0:
        raise SystemExit(f"bench_training.py ended with {done.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=pathlib.Path, default=pathlib.Path.home() / ".cache" / "butterfly-peers")
    parser.add_argument("--install", action="store_true", help="build the peers that are missing, before all else")
    parser.add_argument("--only", choices=("inference", "training"))
    parser.add_argument("--types", nargs="+", default=list(TYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", type=argparse.FileType("w"), help="write what is printed there, too")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    arguments = parser.parse_args()
    arguments.home.mkdir(parents=True, exist_ok=True)
    if arguments.install:
        install(arguments.home)

    def say(text):
        print(text, flush=True)
        if arguments.markdown:
            print(text, file=arguments.markdown, flush=True)

    peers, torch = environments(arguments.home)
    for name in [name for name, python in peers.items() if not python.exists()]:
        print(f"{name} is missing: --install builds it", file=sys.stderr)
        del peers[name]
    disturbance = Disturbance()
    isa, _ = roofs(arguments.butterfly, 1)
    say(f"{machine()}, {isa}, commit {commit()}. `tools/bench_peers.py {' '.join(sys.argv[1:])}`")
    if arguments.only != "training":
        inference(arguments, peers, say)
    if arguments.only != "inference":
        if torch_version(str(torch)):
            training(arguments, torch, say)
        else:
            print("PyTorch is missing: --install brings it", file=sys.stderr)
    say(f"\nDuring these measurements: {disturbance.text()}.")


if __name__ == "__main__":
    main()
