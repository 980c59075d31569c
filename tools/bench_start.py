#!/usr/bin/env python3
"""How long a start takes, from nothing to the first token, and what memory it needs: butterfly, butterfly with packed weights on
disk (--packed-cache), and llama.cpp.

    python3 tools/bench_start.py --types q4_0 q8_0 bf16 --rounds 5 --peer PYTHON_WITH_LLAMA_CPP

Random weights of llama-1.1b in each type, a prompt of 18 tokens, one token. `cold`: the pages of the files are dropped from
the page cache before; `warm`: they are in it. butterfly's time is that of the whole process; llama.cpp's (llama-cpp-python, in
the Python of --peer) begins when its library is imported. Memory is the peak of resident pages less what is shared with files
that are mapped (`own`), and with it (`all`). In turns; medians, least and most.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from bench_training import commit
from bench_vs_llamacpp import machine

PEER = """
import sys, time
import llama_cpp
begin = time.monotonic()
model = llama_cpp.Llama(sys.argv[1], n_threads=int(sys.argv[2]), n_threads_batch=int(sys.argv[2]), n_ctx=512, verbose=False)
model.eval(list(range(1, 19)))
model.sample(temp=0)
print("seconds", time.monotonic() - begin)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("memory", status["VmHWM"].split()[0], status["RssFile"].split()[0])
"""


def set_page_cache(state, *paths):
    """Puts all pages of the files in (warm), or takes them out (cold)."""
    for path in paths:
        for file in [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]:
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
                if state == "cold":
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while state == "warm" and opened.read(1 << 24):
                    pass


def begin_butterfly(program, model, threads, more):
    command = [program, "generate", "-m", model, "-p", "Once upon a time", "-n", "1", "--context", "512", "--threads", threads, *more]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def memory_of_butterfly(program, model, threads, *more):
    """MB of its own, MB with what it maps: looked at while it runs, which slows it down."""
    process = begin_butterfly(program, model, threads, more)
    peak = peak_file = 0
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            text = status.read()
        found = re.search(r"VmHWM:\s+(\d+)", text), re.search(r"RssFile:\s+(\d+)", text)
        if all(found):
            peak, peak_file = int(found[0][1]), max(peak_file, int(found[1][1]))
        time.sleep(0.005)
    return (peak - peak_file) / 1024, peak / 1024


def start_of_butterfly(program, model, threads, *more):
    begin = time.monotonic()
    process = begin_butterfly(program, model, threads, more)
    errors = process.communicate()[1]
    if process.returncode != 0:
        sys.exit(f"bench_start: {errors.decode()}")
    return time.monotonic() - begin


def run_peer(python, model, threads):
    """Seconds, MB of its own, MB with what it maps."""
    run = subprocess.run([python, "-c", PEER, str(model), str(threads)], capture_output=True, text=True, check=True)
    peak, file = map(int, re.search(r"memory (\d+) (\d+)", run.stdout).groups())
    return float(re.search(r"seconds (\S+)", run.stdout)[1]), (peak - file) / 1024, peak / 1024


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(options, model, folder):
    """{what: {"cold": seconds, "warm": seconds, "memory": (own MB, all MB)}}"""
    packed = pathlib.Path(folder) / "packed"
    ours = {"butterfly": (), "butterfly, packed": ("--packed-cache", packed)}
    start_of_butterfly(options.program, model, options.threads, *ours["butterfly, packed"])
    seen = {name: {"cold": [], "warm": [], "memory": memory_of_butterfly(options.program, model, options.threads, *more)}
            for name, more in ours.items()}
    if options.peer:
        seen["llama.cpp"] = {"cold": [], "warm": [], "memory": run_peer(options.peer, model, options.threads)[1:]}
    for _ in range(options.rounds):
        for state in ("cold", "warm"):
            for name, results in seen.items():
                set_page_cache(state, model, packed)
                results[state].append(start_of_butterfly(options.program, model, options.threads, *ours[name]) if name in ours
                                      else run_peer(options.peer, model, options.threads)[0])
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/butterfly")
    parser.add_argument("--types", nargs="+", default=["q4_0", "q8_0", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="a Python that has llama-cpp-python; without it butterfly stands alone")
    options = parser.parse_args()
    print(f"{machine()}, {options.threads} threads, commit {commit()}\n")
    print("| type | file MB | | cold s | warm s | own MB | all MB |\n|---|--:|---|--:|--:|--:|--:|")
    for kind in options.types:
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            subprocess.run([options.program, "convert", "--random", "llama-1.1b", "--type", kind, str(model)], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seen = measure(options, model, folder)
            for name, results in seen.items():
                own, whole = results["memory"]
                print(f"| {kind} | {model.stat().st_size / 1e6:.0f} | {name} | {cell(results['cold'])} | {cell(results['warm'])} | "
                      f"{own:.0f} | {whole:.0f} |", flush=True)


if __name__ == "__main__":
    main()
