#!/usr/bin/env python3
"""Proves: a worker whose first handshake is damaged on its way is dialled again, one that refuses is not.

One bit of the first message, or of a later one, of the very first connection is flipped; the text must come all the
same. Plain, and with credentials.

    first_handshake.py [--quick] [--seed N] [--break]
"""

import argparse
import os
import subprocess
import tempfile
import time

import harness
from harness import PROGRAM, Generation, Process, Worker, reference
from proxy import Proxy

LOAD = {"tokens": 30}
TIMES = 12  # bits for each message


class Cluster:
    """Credentials of a coordinator and a worker."""

    def __init__(self, folder):
        self.coordinator, self.worker = (os.path.join(folder, name) for name in ("coordinator", "worker"))
        self._run("init", self.coordinator)
        admit = Process([PROGRAM, "cluster", "admit", "--credentials", self.coordinator, "--listen", "127.0.0.1:0"])
        with admit:
            address = admit.wait_for(r"^admitting on (\S+)")[1][1]
            token = self._run("token", "--credentials", self.coordinator)
            self._run("enroll", address, token, "--name", "worker", "--credentials", self.worker)

    @staticmethod
    def _run(*arguments):
        return subprocess.run([PROGRAM, "cluster", *arguments], capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def flip(worker, skip, seed, text, options):
    """A sentence where the text did not come."""
    with Proxy(worker.address, seed) as proxy:
        proxy.corrupt(skip=skip)
        with Generation([proxy.address], options=options, **LOAD) as run:
            code = run.wait()
            if proxy.corrupted:
                return "no message was damaged"
            if code != 0 or run.text() != text:
                return f"exit code {code}, {'same' if run.text() == text else 'ANOTHER'} text:\n{run.errors()}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    text = reference(**LOAD)
    if options.wrong:
        text = harness.wrong(text)
    times = 1 if options.wrong else 4 if options.quick else TIMES
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(folder)
        for kind, mine, its in (("plain", (), ()), ("TLS", ("--credentials", cluster.coordinator), ("--credentials", cluster.worker))):
            with Worker(*its) as worker:
                for skip in range(3):
                    told = [flip(worker, skip, options.seed + number, text, mine) for number in range(times)]
                    bad = [one for one in told if one]
                    print(f"{kind}, message {skip + 1}: {len(told) - len(bad)} of {len(told)} the same text", flush=True)
                    for one in bad:
                        print(f"BROKEN: {kind}, message {skip + 1}: {one}", flush=True)
                    broken += len(bad)
    return broken


if __name__ == "__main__":
    harness.campaign(main)
