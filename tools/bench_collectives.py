#!/usr/bin/env python3
"""All-reduce of floats: `butterfly bench collectives` and Gloo through PyTorch, in turns, and the ratio of their medians.

    python3 tools/bench_collectives.py --python PEER/bin/python --members 2 4 --rounds 5

PEER is a virtual environment with PyTorch (pip install torch numpy); without one, only butterfly is measured. Both talk
over loopback without encryption. Butterfly's members are threads of one process with a connection for each pair, Gloo's
are processes with one thread each. A round is a fresh start of either side, which goes first changes every round; for each
size, both take the mean of 2 to 200 operations after an untimed one and a barrier. The table has medians over rounds
(smallest-largest) in microseconds, algorithm bandwidth (bytes / time) and bus bandwidth (times 2 (n-1)/n) in GB/s.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench_vs_llamacpp import machine

PEER_TIMEOUT_S = 600


def operations(size):
    """How many of them a round has: as `butterfly bench collectives`."""
    return min(max((4 << 20) // size, 2), 200)


def gloo_rank(rank, members, rendezvous, sizes):
    """One member of Gloo, in a process of its own; rank 0 prints {size: microseconds}."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=members)
    times = {}
    for size in sizes:
        values = torch.ones(size // 4)
        dist.all_reduce(values)
        if not bool((values == members).all()):
            raise SystemExit(f"Gloo's sum of {size} bytes is wrong")
        values.zero_()
        dist.barrier()
        begin = time.perf_counter_ns()
        for _ in range(operations(size)):
            dist.all_reduce(values)
        times[size] = (time.perf_counter_ns() - begin) / 1000 / operations(size)
    dist.barrier()
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "times": times}))
    dist.destroy_process_group()


def measure_gloo(arguments, members, sizes):
    """{size: microseconds} of one round."""
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.python, os.path.abspath(__file__), "--gloo-members", str(members), "--gloo-rendezvous",
                   os.path.join(folder, "rendezvous"), "--sizes", *map(str, sizes)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [subprocess.Popen([*command, "--gloo-rank", str(rank)], env=environment, text=True,
                                  stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL) for rank in range(members)]
        try:
            output, _ = ranks[0].communicate(timeout=PEER_TIMEOUT_S)
            if any(rank.wait(timeout=60) != 0 for rank in ranks):
                raise SystemExit(f"Gloo with {members} members failed")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return {int(size): us for size, us in json.loads(output)["times"].items()}


def measure_butterfly(arguments, members, sizes):
    """{(engine, size): microseconds} of one round."""
    command = [arguments.butterfly, "bench", "collectives", "--json", "--rounds", "1", "--no-small", "--algorithm", "auto",
               "--members", str(members), "--sizes", ",".join(map(str, sizes))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return {(result["engine"], result["bytes"]): result["median_us"] for result in json.loads(done.stdout)}


def torch_version(python):
    """Nothing where there is no PyTorch with Gloo."""
    if not python:
        return None
    question = "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
    try:
        done = subprocess.run([python, "-c", question], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=120, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def measure(arguments, members, sizes, with_gloo):
    """{way: {size: [microseconds of each round]}}."""
    results = {way: {size: [] for size in sizes} for way in ("inproc", "tcp", *(["gloo"] if with_gloo else []))}

    def butterfly():
        for (engine, size), us in measure_butterfly(arguments, members, sizes).items():
            results[engine][size].append(us)

    def gloo():
        for size, us in measure_gloo(arguments, members, sizes).items():
            results["gloo"][size].append(us)

    sides = [butterfly, *([gloo] if with_gloo else [])]
    for number in range(arguments.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
    return results


def show(members, sizes, results):
    for size in sizes:
        gloo = statistics.median(results["gloo"][size]) if "gloo" in results else None
        for way, times in results.items():
            us = statistics.median(times[size])
            bandwidth = size / us * 1e-3
            line = (f"  {members:2d} members {size:>10d} bytes  {way:<7} {us:10.1f} ({min(times[size]):.1f}-{max(times[size]):.1f}) us"
                    f"  algbw {bandwidth:7.3f}  busbw {bandwidth * 2 * (members - 1) / members:7.3f} GB/s")
            if gloo is not None and way != "gloo":
                line += f"  {gloo / us:.2f} x Gloo"
            print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="interpreter of a virtual environment with PyTorch")
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << shift for shift in range(10, 27, 2)], help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    for name in ("--gloo-members", "--gloo-rank"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gloo-rendezvous", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gloo_members:
        gloo_rank(arguments.gloo_rank, arguments.gloo_members, arguments.gloo_rendezvous, arguments.sizes)
        return 0
    version = torch_version(arguments.python)
    print(f"machine {machine()}, {arguments.rounds} rounds")
    if version:
        print(f"peer    PyTorch {version}, Gloo, one thread in each process; a ratio over 1 means that butterfly is faster")
    else:
        print(f"PyTorch with Gloo is missing ({arguments.python or 'no --python'}): butterfly alone, no ratios")
    for members in arguments.members:
        show(members, arguments.sizes, measure(arguments, members, arguments.sizes, bool(version)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
