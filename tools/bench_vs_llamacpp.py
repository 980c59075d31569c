#!/usr/bin/env python3
"""Measures `butterfly bench model` and llama.cpp in turns on one GGUF file and prints the ratio of their medians.

    build/release/bin/butterfly convert --random llama-1.1b --type q4_0 /tmp/llama-1.1b-q4_0.gguf
    python tools/bench_vs_llamacpp.py -m /tmp/llama-1.1b-q4_0.gguf --threads 1 2 --rounds 5 --peer-python PEER/bin/python

PEER is a virtual environment with llama-cpp-python built for this machine, without AMX (g++ or clang++):

    F='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DCMAKE_C_FLAGS='$F' -DCMAKE_CXX_FLAGS='$F'" \
        PEER/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36

Both sides, after an untimed run, process a prompt of 512 tokens in one batch and then 128 single tokens that follow
it. Nothing is sampled; the tokens do not matter. Every measurement is a fresh process; the two programs take turns,
and the one that goes first changes every round.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

PROMPT_TOKENS = 512
DECODE_TOKENS = 128
PHASES = ("prefill", "decode")


class Peer:
    """llama.cpp's C API on one model and thread count; lives in the child process."""

    def __init__(self, path: str, threads: int):
        import llama_cpp

        self.api = llama_cpp
        self.silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silence, None)
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model_options.use_mmap = True
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = PROMPT_TOKENS + DECODE_TOKENS
        options.n_batch = options.n_ubatch = PROMPT_TOKENS
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp cannot create a context")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.next = 1

    def random_tokens(self, count: int):
        tokens = (self.api.llama_token * count)()
        for i in range(count):
            self.next = (self.next * 1103515245 + 12345) % 2**31
            tokens[i] = (self.next >> 8) % self.vocabulary
        return tokens

    def decode(self, tokens):
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(tokens)))
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        self.api.llama_synchronize(self.context)

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def tokens_per_s(self, batch: int, batches: int) -> float:
        """`batches` calls of `batch` random tokens, after what is in the cache."""
        tokens = [self.random_tokens(batch) for _ in range(batches)]
        start = time.perf_counter()
        for some in tokens:
            self.decode(some)
        return batch * batches / (time.perf_counter() - start)


def peer_main(arguments):
    threads = arguments.threads[0]
    peer = Peer(arguments.model, threads)
    peer.tokens_per_s(PROMPT_TOKENS, 1)
    peer.tokens_per_s(1, 4)
    result = {"threads": threads, "prefill_tokens_per_s": [], "decode_tokens_per_s": []}
    for _ in range(arguments.samples):
        peer.clear()
        result["prefill_tokens_per_s"].append(peer.tokens_per_s(PROMPT_TOKENS, 1))
        result["decode_tokens_per_s"].append(peer.tokens_per_s(1, DECODE_TOKENS))
    system = peer.api.llama_print_system_info().decode().strip()
    print(json.dumps({"version": peer.api.__version__, "system": system, "results": [result]}))


def run_json(command: list[str], name: str) -> dict:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with code {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def measure(name: str, threads: int, arguments) -> dict:
    if name == "butterfly":
        command = [arguments.butterfly, "bench", "model", "-m", arguments.model, "--json", "--rounds"]
    else:
        command = [arguments.peers[name], os.path.abspath(__file__), "--peer", "-m", arguments.model, "--samples"]
    return run_json([*command, str(arguments.samples), "--threads", str(threads)], name)


def of_threads(report: dict, threads: int) -> dict:
    return next(result for result in report["results"] if result["threads"] == threads)


def compare(arguments) -> dict:
    """Samples as {threads: {program: {phase: [tokens/s]}}}, with the version and flags of each peer. One that fails is
    left out from then on."""
    names = ["butterfly", *arguments.peers]
    samples = {threads: {name: {phase: [] for phase in PHASES} for name in names} for threads in arguments.threads}
    peers, ours = {}, {}
    failed = {}
    for number in range(arguments.rounds):
        first = number % len(names)
        for threads in arguments.threads:
            for name in names[first:] + names[:first]:
                if name in failed:
                    continue
                try:
                    report = measure(name, threads, arguments)
                except SystemExit as failure:
                    if name == "butterfly":
                        raise
                    failed[name] = str(failure).splitlines()[0].split(":")[0]
                    print(f"left out: {failed[name]}", file=sys.stderr)
                    continue
                result = of_threads(report, threads)
                if name == "butterfly":
                    ours[threads] = result
                else:
                    peers[name] = {"version": report["version"], "system": report["system"]}
                for phase in PHASES:
                    samples[threads][name][phase] += result[f"{phase}_tokens_per_s"]
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    for programs in samples.values():
        for name in failed:
            del programs[name]
    return {"machine": machine(), "model": os.path.basename(arguments.model), "failed": failed, "samples": samples, "butterfly": ours,
            "peers": {name: peer for name, peer in peers.items() if name not in failed}}


def machine() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            name = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs"


def cell(values: list) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def print_table(report: dict):
    print(f"machine    {report['machine']}")
    print(f"model      {report['model']}, prefill {PROMPT_TOKENS}, decode {DECODE_TOKENS}")
    for name, peer in report["peers"].items():
        print(f"{name}  llama-cpp-python {peer['version']}: {peer['system']}")
    print("tokens/s: median (smallest-largest)")
    row = "{:>7}  {:<8} {:>24}" + " {:>24}  {:>6}" * len(report["peers"])
    heads = [head for name in report["peers"] for head in (name, "ratio")]
    print(row.format("threads", "phase", "butterfly", *heads))
    for threads, programs in report["samples"].items():
        for phase in PHASES:
            ours = programs["butterfly"][phase]
            cells = [cell(ours)]
            for name in report["peers"]:
                theirs = programs[name][phase]
                cells += [cell(theirs), f"{statistics.median(ours) / statistics.median(theirs):.2f}"]
            print(row.format(threads, phase, *cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, help="times that both programs run for each thread count")
    parser.add_argument("--samples", type=int, default=1, help="timed repetitions in each run")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly", help="the program")
    parser.add_argument("--peer-python", default="python3", help="Python that has llama-cpp-python")
    parser.add_argument("--json", action="store_true", help="print every sample as JSON instead of the table")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer_main(arguments)
        return
    arguments.peers = {"llama.cpp": arguments.peer_python}
    report = compare(arguments)
    if report["failed"]:
        raise SystemExit(report["failed"]["llama.cpp"])
    if "AMX" in report["peers"]["llama.cpp"]["system"]:
        print("note: this llama.cpp was built with AMX", file=sys.stderr)
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print_table(report)


if __name__ == "__main__":
    main()
