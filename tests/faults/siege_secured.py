#!/usr/bin/env python3
"""Besieges a worker that has credentials: random connections, silent ones, and garbage, while it goes on serving.

    tests/faults/siege_secured.py [--butterfly BINARY] [--connections 100000] [--garbage-mb 1024]

Prints the worker's memory before and after, and how long a generation took before, during and after. Exit status 1 when
a generation failed or wrote other bytes, or the memory grew by more than 16 MB.
"""

import argparse
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/distributed"))


def resident_kb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])


class Siege:
    def __init__(self, address):
        host, port = address.split(":")
        self.target = (host, int(port))
        self.connections = self.bytes = self.refused = 0
        self.dice = random.Random(7)
        self.noise = os.urandom(1 << 20)

    def dial(self):
        peer = socket.socket()
        # Many source addresses, and an end without TIME_WAIT: or ports run out.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.bind(("127.0.0.%d" % self.dice.randint(2, 250), 0))
        peer.settimeout(10)
        peer.connect(self.target)
        self.connections += 1
        return peer

    def connect(self):
        """One connection that says nothing, something random, or something that begins like TLS."""
        try:
            with self.dial() as peer:
                kind = self.dice.randint(0, 3)
                if kind == 0:
                    return
                start = self.dice.randint(0, len(self.noise) - 600)
                words = self.noise[start:start + self.dice.randint(1, 500)]
                if kind == 1:
                    words = b"\x16\x03\x01" + struct.pack(">H", self.dice.randint(0, 0x4100)) + words
                peer.sendall(words)
                self.bytes += len(words)
        except OSError:
            self.refused += 1

    def flood(self, total):
        """Garbage, as much as the port takes, until `total` bytes are sent."""
        sent = 0
        while sent < total:
            try:
                with self.dial() as peer:
                    while sent < total:
                        sent += peer.send(self.noise)
            except OSError:
                pass
        self.bytes += sent


def main():
    parser = argparse.ArgumentParser(description="Besieges a worker.")
    parser.add_argument("--butterfly", default=os.path.join(ROOT, "build/release/bin/butterfly"))
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--garbage-mb", type=int, default=1024)
    options = parser.parse_args()
    os.environ["BUTTERFLY_PROGRAM"] = options.butterfly
    import program
    folder = tempfile.TemporaryDirectory()
    cluster = os.path.join(folder.name, "cluster")
    assert program.butterfly("cluster", "init", cluster).returncode == 0

    def generate():
        begin = time.monotonic()
        run = program.butterfly("generate", "-m", program.DEMO, "-p", "ROMEO:", "-n", 30, "--credentials", cluster,
                                "--workers", worker.address)
        return run.stdout, run.stderr, time.monotonic() - begin

    with program.Worker("--credentials", cluster) as worker:
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(iter(worker.process.stderr.readline, b"")))
        reader.start()
        expected, errors, quiet_s = generate()
        assert expected, errors
        before = resident_kb(worker.process.pid)
        siege = Siege(worker.address)
        begin = time.monotonic()
        served = []

        def customers():
            while not over.is_set():
                served.append(generate())
                over.wait(2)

        over = threading.Event()
        customer = threading.Thread(target=customers)
        customer.start()
        while siege.connections + siege.refused < options.connections:
            siege.connect()
        connected = siege.connections
        siege.flood(options.garbage_mb << 20)
        over.set()
        customer.join()
        siege_s = time.monotonic() - begin
        after = resident_kb(worker.process.pid)
        served.append(generate())
        worker.process.terminate()
        reader.join()
    wrong = [run for run in served if run[0] != expected]
    during = sorted(run[2] for run in served[:-1])
    print(f"{connected} connections ({siege.refused} not even accepted), {siege.bytes / 1e6:.0f} MB of garbage, "
          f"{siege_s:.0f} s")
    print(f"memory of the worker: {before} kB before, {after} kB after")
    print(f"generation: {quiet_s:.2f} s before; during, {len(during)} times, median {during[len(during) // 2]:.2f} s, worst "
          f"{during[-1]:.2f} s; {served[-1][2]:.2f} s after; {len(wrong)} failed or differed")
    print(f"lines in the worker's log: {len(lines)}, of which refusals: {sum(b'refused' in line for line in lines)}")
    for _, errors, _ in wrong[:3]:
        print(errors.decode())
    return 1 if wrong or after > before + 16_384 else 0


if __name__ == "__main__":
    sys.exit(main())
