#!/usr/bin/env python3
"""Serialisation of gradients: this program's frames beside Python's pickle and numpy's tobytes, and a table of socket
buffers and codecs.

    python3 tools/bench_serialisation.py --python PEER/bin/python --rounds 5

PEER is an interpreter with numpy (pip install numpy); without one, pickle packs an array.array and tobytes is left out.
One round is a fresh start of either side, which goes first changes every round. "encode" makes the bytes that a socket
takes, "decode" makes an array again that its owner may write to. Of the program: a frame with its CRC-32C, and a copy in
place of the one into or out of a socket's buffer; "in place" is that frame without the copy, as the program sends it:
floats stay where they lie. pickle and tobytes copy as part of it and check nothing; "tobytes+crc32" checks, too.
The second table sends a gradient over plain loopback: none, LZ4 and zstd by this program's channels, zlib (level 1)
by Python over sockets with the same buffers. Its GB/s are of the gradient, not of what travels.
"""

import argparse
import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import threading
import time
import zlib

from bench_gradient_compression import commit
from bench_vs_llamacpp import machine

BUFFERS = tuple(1 << shift for shift in range(19, 25))  # 512 KiB to 16 MiB
SIZES = (1720, *BUFFERS)  # the gradients of a network of 430 parameters, and larger ones
BYTES = 16 << 20
TIMEOUT_S = 600


def gradient(size):
    """Normally distributed floats of deviation 1e-3, as the program's; a numpy array where there is one."""
    try:
        import numpy

        return numpy.random.default_rng(1).normal(0, 1e-3, size // 4).astype(numpy.float32)
    except ImportError:
        import array
        import random

        generator = random.Random(1)
        some = array.array("f", (generator.gauss(0, 1e-3) for _ in range(min(size // 4, 1 << 16))))
        return array.array("f", (some.tobytes() * (size // len(some.tobytes()) + 1))[:size])


def rate(size, work):
    """GB/s of some calls, after one that is not timed."""
    work()
    count = min(max((64 << 20) // size, 4), 20_000)
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return size * count / (time.perf_counter() - begin) / 1e9


def python_frames():
    """{way: {size: {"encode": GB/s, "decode": GB/s}}} of this interpreter."""
    results = {}
    for size in SIZES:
        values = gradient(size)
        packed = pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        results.setdefault("pickle", {})[size] = {
            "encode": rate(size, lambda: pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)),
            "decode": rate(size, lambda: pickle.loads(packed))}
        if hasattr(values, "dtype"):
            import numpy

            raw = values.tobytes()
            results.setdefault("tobytes", {})[size] = {
                "encode": rate(size, values.tobytes), "decode": rate(size, lambda: numpy.frombuffer(raw, values.dtype).copy())}
            results.setdefault("tobytes+crc32", {})[size] = {
                "encode": rate(size, lambda: zlib.crc32(values.tobytes())),
                "decode": rate(size, lambda: (zlib.crc32(raw), numpy.frombuffer(raw, values.dtype).copy()))}
    return results


def set_buffers(end, size):
    """Root may go over the system's limit."""
    for forced, limited in ((32, socket.SO_SNDBUF), (33, socket.SO_RCVBUF)):  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
        try:
            end.setsockopt(socket.SOL_SOCKET, forced, size)
        except OSError:
            end.setsockopt(socket.SOL_SOCKET, limited, size)


def receive(end, size):
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = end.recv_into(view)
        if count == 0:
            raise SystemExit("a socket of our own was closed")
        view = view[count:]
    return data


def zlib_crossing(buffer):
    """(GB/s, ratio) of one gradient through a connection, packed by zlib on one side and unpacked on the other."""
    raw = gradient(BYTES).tobytes()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as near:
        for end in (server, near):
            set_buffers(end, buffer)
        near.connect(server.getsockname())
        far, _ = server.accept()

        def answer():
            size = int.from_bytes(receive(far, 8), "little")
            far.sendall(b"1" if zlib.decompress(receive(far, size)) == raw else b"0")

        with far:
            thread = threading.Thread(target=answer)
            thread.start()
            begin = time.perf_counter()
            packed = zlib.compress(raw, 1)
            near.sendall(len(packed).to_bytes(8, "little"))
            near.sendall(packed)
            same = receive(near, 1) == b"1"
            seconds = time.perf_counter() - begin
            thread.join()
    if not same:
        raise SystemExit("zlib: a gradient came out of a connection other than it went in")
    return len(raw) / seconds / 1e9, len(raw) / len(packed)


def child():
    """What an interpreter can do, as JSON."""
    results = {"frames": python_frames(), "crossings": {buffer: zlib_crossing(buffer) for buffer in BUFFERS},
               "python": sys.version.split()[0]}
    try:
        import numpy

        results["numpy"] = numpy.__version__
    except ImportError:
        results["numpy"] = None
    print(json.dumps(results))


def ask(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def measure(arguments):
    """({(way, size, direction): [GB/s]}, {(buffer, codec): ([GB/s], ratio)}, the peer's versions)."""
    frames, crossings, versions = {}, {}, {}

    def butterfly():
        done = ask([arguments.butterfly, "bench", "wire", "--json", "--only", "frames,table", "--rounds", "1",
                    "--sizes", ",".join(map(str, SIZES)), "--buffers", ",".join(map(str, BUFFERS)), "--bytes", str(BYTES),
                    "--messages", "4", "--serialisations", "frame", "--logs", "off"])
        for row in done["frames"]:
            for direction in ("encode", "decode"):
                frames.setdefault(("frame", row["bytes"], direction), []).extend(row[direction + "_gb_per_s"])
            frames.setdefault(("in place", row["bytes"], "encode"), []).extend(row["frame_gb_per_s"])
        for row in done["table"]:
            codec = {"off": "none"}.get(row["codec"], row["codec"])
            crossings.setdefault((row["buffer"], codec), ([], row["ratio"]))[0].extend(row["gb_per_s"])

    def peer():
        done = ask([arguments.python, os.path.abspath(__file__), "--child"])
        versions.update({name: done[name] for name in ("python", "numpy")})
        for way, sizes in done["frames"].items():
            for size, rates in sizes.items():
                for direction, value in rates.items():
                    frames.setdefault((way, int(size), direction), []).append(value)
        for buffer, (value, ratio) in done["crossings"].items():
            crossings.setdefault((int(buffer), "zlib"), ([], ratio))[0].append(value)

    for number in range(arguments.rounds):
        for side in (butterfly, peer) if number % 2 == 0 else (peer, butterfly):
            side()
    return frames, crossings, versions


def spread(values):
    return "{:.3g} ({:.3g}-{:.3g})".format(statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter with numpy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--butterfly", default="build/release/bin/butterfly")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child()
        return 0
    if arguments.quick:
        arguments.rounds = 1
    frames, crossings, versions = measure(arguments)
    print(f"machine {machine()}, commit {commit()}, {arguments.rounds} rounds: {' '.join(sys.argv)}")
    print(f"peer    Python {versions['python']}, " + (f"numpy {versions['numpy']}" if versions["numpy"] else "no numpy: pickle of an array.array"))
    print(f"\n{'bytes':>10s}  {'way':<13s} {'encode GB/s':<24s} {'decode GB/s':<24s} frame's encode and decode, times this way's")
    for size in SIZES:
        for way in ("frame", "in place", "pickle", "tobytes", "tobytes+crc32"):
            if (way, size, "encode") not in frames:
                continue
            pair = [frames.get((way, size, direction)) for direction in ("encode", "decode")]
            ours = [frames["frame", size, direction] for direction in ("encode", "decode")]
            factors = ", ".join(f"{statistics.median(a) / statistics.median(b):.2f}" for a, b in zip(ours, pair) if b)
            print(f"{size:>10d}  {way:<13s} {spread(pair[0]):<24s} {spread(pair[1]) if pair[1] else '-':<24s} {factors}")
    print(f"\nGB/s of a gradient of {BYTES >> 20} MiB over loopback, by bytes of the sockets' buffers; ratio of its bytes to those that travel")
    codecs = ("none", "zlib", "lz4", "zstd")
    print(f"{'buffer':>10s}" + "".join(f"  {codec + f' ({crossings[BUFFERS[0], codec][1]:.2f})':<24s}" for codec in codecs))
    for buffer in BUFFERS:
        print(f"{buffer:>10d}" + "".join(f"  {spread(crossings[buffer, codec][0]):<24s}" for codec in codecs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
