#!/usr/bin/env python3
"""Proves: a client that besieges a worker's port neither stops its work nor makes it grow.

A worker serves one generation after another while strangers at its port
    stay silent          hold connections open and say nothing
    half handshake       hold connections open after half a hello
    connect and leave    after up to 200 random bytes: --connections times
    pour garbage         as much as goes in, --gigabytes altogether
    handshake, pour      the same after a valid hello
    pretend              ask to be its coordinator, again and again (one that comes between two generations is believed;
                         the next generation is told so)
Every text must be the one that one process writes, in its first epoch; afterwards the worker has the descriptors that
it had, and not much more memory. Prints the slowdown of the generations, which share the processor with the strangers.

    siege.py [--connections 100000] [--gigabytes 1] [--quick] [--break]

--quick: some seconds, a hundredth of everything, and a later epoch is no fault. --break compares with a wrong text: must fail.
"""

import argparse
import functools
import os
import random
import socket
import struct
import sys
import time
from contextlib import ExitStack

import harness
from harness import Generation, Process, Worker, median, open_files, reference, resident_bytes, settles

LOAD = {"tokens": 200}
GROWTH_MAX = 64 << 20
HELD = 200  # connections that a silent stranger holds at once


def hello(role=2, label=b"input"):
    """The first 96 bytes of docs/formats/wire.md, of this program's version of the protocol."""
    return struct.pack("<8sHHBBH16s64s", b"BFLYwire", protocol(), 96, role, len(label), 0, os.urandom(16), label)


@functools.lru_cache(maxsize=None)
def protocol():
    """The version that this program speaks: its answer to a hello of version 0."""
    with Worker() as worker, socket.create_connection(split(worker.address), timeout=20) as one:
        one.sendall(struct.pack("<8sHH84x", b"BFLYwire", 0, 96))
        magic, version = struct.unpack("<8sH6x", one.recv(16, socket.MSG_WAITALL))
        assert magic == b"BFLYhere"
        return version


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def connect(address, patience=5):
    """None when the worker does not take it."""
    try:
        one = socket.create_connection(address, timeout=patience)
    except OSError:
        return None
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves no TIME_WAIT behind
    return one


def hold(address, amount, first_words):
    """Keeps HELD connections open, `amount` seconds long; those that the worker closes are opened again."""
    end, held, count = time.monotonic() + amount, [], 0
    while time.monotonic() < end:
        if len(held) < HELD and (one := connect(address)):
            one.setblocking(False)
            try:
                one.send(first_words)
            except OSError:
                pass
            held.append(one)
            count += 1
            continue
        time.sleep(0.05)
        for one in list(held):
            try:
                if not one.recv(64):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                held.remove(one)
                one.close()
    return f"{count} connections"


def connect_and_leave(address, amount, _):
    generator, refused = random.Random(1), 0
    for _ in range(amount):
        one = connect(address)
        if not one:
            refused += 1
            continue
        try:
            one.send(generator.randbytes(generator.randrange(201)))
        except OSError:
            pass
        one.close()
    return f"{amount} connections, {refused} not taken"


def pour(address, amount, first_words):
    """The bytes that the worker's machine took; most of them after the worker had hung up go nowhere."""
    block, taken, count = os.urandom(1 << 20), 0, 0
    while taken < amount:
        one = connect(address)
        if not one:
            continue
        count += 1
        try:
            if first_words:
                one.send(first_words)
                one.recv(16)
            while taken < amount:
                taken += one.send(block)
        except OSError:
            pass
        one.close()
    return f"{taken / 1e6:.0f} MB over {count} connections"


def pretend(address, amount, first_words):
    """A control connection like a coordinator's, left again after the worker's answer."""
    end, count = time.monotonic() + amount, 0
    while time.monotonic() < end:
        if one := connect(address):
            count += 1
            try:
                one.send(hello(role=1, label=b"stranger"))
                one.recv(4096)
            except OSError:
                pass
            one.close()
        time.sleep(0.002)
    return f"{count} pretenders"


def sieges(options):
    """(name, function, amount, first words)"""
    small = 100 if options.quick else 1
    seconds = 1 if options.quick else 15
    return (("stay silent", hold, seconds, b""), ("half handshake", hold, seconds, hello()[:50]),
            ("connect and leave", connect_and_leave, options.connections // small, b""),
            ("pour garbage", pour, int(options.gigabytes * 1e9) // small, b""),
            ("handshake, pour", pour, int(options.gigabytes * 1e9) // small, hello()),
            ("pretend", pretend, seconds, b""))


def attack(name, address, options):
    _, function, amount, words = next(siege for siege in sieges(options) if siege[0] == name)
    print(function(split(address), amount, words))


class Serving:
    """Two workers and the generations over them; the first is besieged."""

    def __init__(self, stack, text, patient):
        self.workers = [stack.enter_context(Worker()) for _ in range(2)]
        self.text, self.patient, self.broken = text, patient, []
        self.turned_away = 0

    def generate(self, what):
        """Seconds that a generation took."""
        with Generation(self.workers, **LOAD) as run:
            code = run.wait()
            if what == "pretend" and code == 2 and "busy with coordinator stranger" in run.errors():
                self.turned_away += 1  # the first to come is the coordinator, as long as clients need not prove anything
            elif code != 0 or run.text() != self.text:
                last = [line for _, line in run.lines if line.startswith("butterfly: ")][-1:]
                self.broken.append(f"{what}: exit code {code}, {'the same' if run.text() == self.text else 'another'} text {last}")
            elif not self.patient and any(number > 1 for _, number, _ in run.epochs()):
                self.broken.append(f"{what}: {run.epochs()}")
            return run.ended - run.started


def besiege(serving, name, alone, options):
    """Generations while one kind of stranger is at the port, and what the worker keeps of it."""
    worker = serving.workers[0]
    memory, files = resident_bytes(worker.pid), open_files(worker.pid)
    command = [sys.executable, "-B", os.path.abspath(__file__), "--attack", name, worker.address,
               "--connections", options.connections, "--gigabytes", options.gigabytes] + ["--quick"] * options.quick
    times, most = [], memory
    with Process(command) as stranger:
        while stranger.process.poll() is None or not times:
            times.append(serving.generate(name))
            most = max(most, resident_bytes(worker.pid))
        if stranger.wait() != 0:
            serving.broken.append(f"{name}: the stranger itself failed: {stranger.errors()}")
        did = stranger.text().decode().strip()
    # Half a hello is given five seconds.
    if not settles(lambda: open_files(worker.pid) <= files):
        serving.broken.append(f"{name}: descriptors grew from {files} to {open_files(worker.pid)}")
    after = resident_bytes(worker.pid)
    if after > memory + GROWTH_MAX:
        serving.broken.append(f"{name}: memory grew from {memory} to {after} bytes")
    print(f"{name}: {did}; {len(times)} generations, {median(times):.2f} s (alone {alone:.2f} s), worst {max(times):.2f} s; memory "
          f"{memory / 1e6:.0f} -> {most / 1e6:.0f} -> {after / 1e6:.0f} MB, descriptors {files} -> {open_files(worker.pid)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=100000)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--break", dest="wrong", action="store_true")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        return attack(*options.attack, options)
    text = reference(**LOAD)
    with ExitStack() as stack:
        serving = Serving(stack, harness.wrong(text) if options.wrong else text, patient=options.quick)
        alone = median([serving.generate("alone") for _ in range(3)])
        settles(lambda: open_files(serving.workers[0].pid) <= 5, 2)
        for name, *_ in sieges(options)[:1 if options.wrong else None]:
            besiege(serving, name, alone, options)
    if serving.turned_away:
        print(f"{serving.turned_away} generations were told that a pretender had come first")
    for sentence in serving.broken[:20]:
        print(f"BROKEN: {sentence}")
    print(f"{len(serving.broken)} complaints")
    return len(serving.broken)


if __name__ == "__main__":
    harness.campaign(main)
