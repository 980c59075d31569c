"""A TCP proxy in front of a worker that lies, goes silent or hangs up at a chosen moment.

Workers also reach each other at the address that the coordinator was given, so everything that a worker hears and says
passes here.
"""

import os
import random
import socket
import struct
import threading
import time


class Proxy:
    """Listens on a port of its own (`address`) and carries connections to `target` until a fault is asked for."""

    def __init__(self, target, seed=0):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.flowing = threading.Event()
        self.flowing.set()
        self.pairs, self.corrupted, self.skipped = [], 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            pair = (near, far)
            with self.lock:
                self.pairs.append(pair)
            for source, sink in (pair, pair[::-1]):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, sink, pair), daemon=True).start()

    def _pump(self, source, sink, pair):
        try:
            while data := source.recv(262144):
                self.flowing.wait()
                if self.corrupted:
                    data = self._damage(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (sink, source):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self.lock:
            if pair in self.pairs:
                self.pairs.remove(pair)

    def _damage(self, data):
        with self.lock:
            if not self.corrupted:
                return data
            if self.skipped:
                self.skipped -= 1
                return data
            self.corrupted -= 1
            place = self.random.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << self.random.randrange(8))]) + data[place + 1:]

    def _open(self):
        with self.lock:
            return list(self.pairs)

    def garbage(self, size=4096):
        """Random bytes in the middle of every open connection, both ways; the moment at which that began."""
        now = time.monotonic()
        for pair in self._open():
            for end in pair:
                try:
                    end.send(os.urandom(size), socket.MSG_DONTWAIT)
                except OSError:
                    pass
        return now

    def corrupt(self, times=1, skip=0):
        """Turns one bit in each of the next messages that pass, after `skip` others."""
        self.skipped, self.corrupted = skip, times
        return time.monotonic()

    def stall(self):
        """Nothing passes any more, and nobody is told."""
        now = time.monotonic()
        self.flowing.clear()
        return now

    def resume(self):
        self.flowing.set()

    def cut(self):
        """Resets every open connection."""
        now = time.monotonic()
        for pair in self._open():
            for end in pair:
                try:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                    end.close()
                except OSError:
                    pass
        return now

    def close(self):
        self.listener.close()
        self.flowing.set()
        self.cut()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
