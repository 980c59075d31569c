#!/usr/bin/env python3
"""Many readers of one server over worker processes, while readers hang up, workers are killed and the server itself is.

    tests/faults/serving.py [--quick] [--seconds N] [--streams N] [--workers N] [--worker-every S] [--server-kills N]
                            [--replicas N] [--retention S] [--seed N]

Each reader asks for a text as a stream, hangs up at random, comes back by the id of its request and reads on. A worker is
killed every few seconds and started again; the server is killed with SIGKILL and started again over the same journal. Each
text has to be, byte by byte, the one that an undisturbed server gave before. At the end nothing may wait, run or hold pages
of the cache but those that are kept for prompts; with --retention of less than a minute, also nothing may be left in the
journal after it, and the server's memory may not have grown by more than a quarter since a third of its time,
or since the first answers were forgotten, whichever came later.
--break: one character of each expected text is another, and the first reader must notice.
Exit status 0: all held; 1: something did not, as stdout says.
"""

import argparse
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time

from harness import Worker, campaign, commit, free_ports, machine_line, resident_bytes

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "distributed"))
from serve_kit import Server  # noqa: E402

PROMPTS = ["ROMEO:", "JULIET:\nO Romeo", "KING RICHARD II:\nWhat", "First Citizen:\nWe are", "QUEEN MARGARET:"]


def body_of(number):
    return {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 40 + number * 37 % 160, "seed": number % 40,
            "temperature": 0.9, "ignore_eos": True}


class Reader:
    """One text after the other, each to its end whatever happens on the way."""

    def __init__(self, run, number):
        self.run, self.random = run, random.Random(run.arguments.seed * 1000 + number)

    def read(self, connection, seen, text, leave_after):
        """Events into `text` until the end (True), a hang-up of ours or a lost connection (False)."""
        answer = connection.getresponse()
        if answer.status != 200:
            content = answer.read().decode()
            if answer.status in (429, 503):
                time.sleep(0.2)
                return False
            if answer.status == 404 and "request" not in seen:
                return False
            raise RuntimeError(f"status {answer.status}: {content}")
        while True:
            fields = {}
            while (line := answer.readline().decode().rstrip("\n")) != "":
                name, _, value = line.partition(": ")
                fields[name] = value
            if "" in fields and "data" not in fields:
                continue  # a comment: the answer is waited for
            if "data" not in fields:
                return False
            seen["event"] = int(fields["id"])
            if fields["data"] == "[DONE]":
                return True
            data = json.loads(fields["data"])
            if "error" in data:
                raise RuntimeError(f"error in a stream: {data['error']}")
            seen["request"] = data["id"]
            seen.setdefault("first", time.monotonic())
            text.append(data["choices"][0]["text"])
            if self.random.random() < leave_after:
                return False

    def one(self, number):
        seen, text = {}, []
        began = time.monotonic()
        while time.monotonic() < self.run.patience:
            connection = http.client.HTTPConnection(self.run.address, timeout=60)
            try:
                if "request" in seen:
                    connection.request("GET", "/v1/streams/" + seen["request"],
                                       headers={"Last-Event-ID": str(seen["event"])})
                    self.run.count("came back")
                else:
                    connection.request("POST", "/v1/completions", json.dumps(dict(body_of(number), stream=True)))
                if self.read(connection, seen, text, self.run.arguments.leave):
                    self.run.answered(number, "".join(text), began, seen["first"])
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
            finally:
                connection.close()
        self.run.fail(f"request {number} was not answered in time")

    def loop(self):
        while time.monotonic() < self.run.end and not self.run.failures:
            try:
                self.one(self.random.randrange(200))
            except Exception as error:  # a thread's end has to be seen
                self.run.fail(f"{type(error).__name__}: {error}")


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.lock = threading.Lock()
        self.failures, self.counts, self.first_s, self.whole_s = [], {}, [], []
        self.expected, self.memory, self.sent_again = {}, [], []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, why):
        with self.lock:
            self.failures.append(why)

    def answered(self, number, text, began, first):
        self.count("answered")
        with self.lock:
            self.first_s.append(first - began)
            self.whole_s.append(time.monotonic() - began)
            if text != self.expected[number]:
                self.failures.append(f"request {number} gave {text!r}, expected {self.expected[number]!r}")

    def start_server(self):
        split = ["--replicas", str(self.arguments.replicas)] if self.arguments.replicas else ["--split", "uniform"]
        return Server("--workers", ",".join(self.worker_addresses), *split, "--parallel", "32",
                      "--queue", "1000", "--cache-tokens", "6000", "--retention", str(self.arguments.retention),
                      journal=self.journal, listen=self.address, log=self.log)

    def start_worker(self, index):
        return Worker(listen=self.worker_addresses[index])

    def expect(self):
        """What an undisturbed server of one process says."""
        with Server("--parallel", "32") as server:
            for number in range(200):
                self.expected[number] = server.good("/v1/completions", body_of(number))["choices"][0]["text"]
                if self.arguments.wrong:
                    self.expected[number] = self.expected[number][:-1] + "\0"

    def disturb(self):
        """Workers in turn, and the server at its times."""
        arguments = self.arguments
        next_worker = time.monotonic() + (arguments.worker_every or float("inf"))
        moments = random.Random(arguments.seed)
        kills = sorted(time.monotonic() + arguments.seconds * moments.uniform(0.05, 0.95)
                       for i in range(arguments.server_kills))
        index = 0
        while time.monotonic() < self.end and not self.failures:
            time.sleep(0.1)
            if time.monotonic() >= next_worker:
                self.workers[index].kill()
                time.sleep(1)
                self.workers[index] = self.start_worker(index)
                index = (index + 1) % len(self.workers)
                next_worker += arguments.worker_every
                self.count("workers killed")
            if kills and time.monotonic() >= kills[0]:
                kills.pop(0)
                self.server.kill()
                self.server = self.start_server()
                self.count("server killed")
                self.sent_again.append(sum(epoch["weight_bytes"] for epoch in self.server.ask("/v1/cluster")[2]["epochs"]))
                if self.sent_again[-1] > 0 and not arguments.worker_every:
                    self.fail(f"the server sent {self.sent_again[-1]} bytes of weights to workers that had them")
            self.memory.append((time.monotonic(), self.server.process.pid, resident_bytes(self.server.process.pid)))

    def hang_up_at_once(self):
        """Requests whose clients never learn by which id they could come back."""
        for number in range(8):
            connection = http.client.HTTPConnection(self.address, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(dict(body_of(number), stream=True)))
            connection.close()
        end = time.monotonic() + 60
        while len(self.entries()) < 8 and time.monotonic() < end:
            time.sleep(0.05)

    def forgotten(self):
        """Nothing is left in the journal once readers have had their time to come back."""
        end = time.monotonic() + self.arguments.retention + 30
        while (left := self.entries()) and time.monotonic() < end:
            time.sleep(0.5)
        self.memory.append((time.monotonic(), self.server.process.pid, resident_bytes(self.server.process.pid)))
        return not left

    def entries(self):
        return [name for name in os.listdir(self.journal) if name.endswith(".json")]

    def settled(self):
        """Nothing waits, runs or holds pages but for prompts."""
        end = time.monotonic() + 30
        names = ["butterfly_requests_running", "butterfly_requests_waiting"]
        while time.monotonic() < end:
            if all(self.server.metric(name) == 0 for name in names):
                used, kept = (self.server.metric("butterfly_cache_pages" + end) for end in ("", "_kept"))
                if used == kept:
                    return True
            time.sleep(0.2)
        return False


def percentiles(values):
    values = sorted(values)
    return " / ".join(f"{values[min(len(values) - 1, int(len(values) * share))]:.2f} s" for share in (0.5, 0.95, 0.99))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 readers for 12 seconds")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=0, help="copies of the model over the workers, instead of one")
    parser.add_argument("--worker-every", type=float, default=20, help="seconds; 0: no worker is killed")
    parser.add_argument("--server-kills", type=int, default=2)
    parser.add_argument("--leave", type=float, default=0.01, help="chance of a hang-up after each event")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--retention", type=int, default=600, help="that of the server, in seconds")
    parser.add_argument("--break", dest="wrong", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.streams, arguments.worker_every, arguments.server_kills = 12, 12, 4, 1
        arguments.retention = 8
    run = Run(arguments)
    run.expect()
    run.address, *run.worker_addresses = [f"127.0.0.1:{port}" for port in free_ports(arguments.workers + 1)]
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(suffix=".log") as run.log:
        run.journal = os.path.join(folder, "journal")
        run.workers = [run.start_worker(index) for index in range(arguments.workers)]
        run.server = run.start_server()
        run.end = time.monotonic() + arguments.seconds
        run.patience = run.end + 120
        threads = [threading.Thread(target=Reader(run, number).loop) for number in range(arguments.streams)]
        for thread in threads:
            thread.start()
        run.disturb()
        for thread in threads:
            thread.join()
        short = arguments.retention < 60
        if short and not run.failures:
            run.hang_up_at_once()
        if not run.failures and not run.settled():
            run.fail("requests or their pages are left: " + run.server.ask("/metrics")[2].decode())
        left = run.entries()
        if short and not run.failures and not run.forgotten():
            run.fail(f"{len(run.entries())} entries are left in the journal {arguments.retention} s after the last answer")
        run.server.kill()
        for worker in run.workers:
            worker.kill()
    last = [(at, bytes) for at, pid, bytes in run.memory if pid == run.memory[-1][1]]
    print(f"{machine_line()}, {commit()}")
    print(f"{arguments.streams} readers, {arguments.workers} workers, {arguments.seconds:.0f} s: "
          + ", ".join(f"{count} {what}" for what, count in sorted(run.counts.items())))
    if run.first_s:
        print(f"p50 / p95 / p99: first token {percentiles(run.first_s)}; whole text {percentiles(run.whole_s)}")
    if len(last) > 20:
        # Until answers are forgotten there are more and more of them.
        kept = sum(at < last[0][0] + arguments.retention for at, _ in last)
        full = max(len(last) // 3, min(kept, len(last) - 1))
        tenth, grown, end = (last[i][1] for i in (len(last) // 10, full, len(last) - 1))
        print(f"memory of the server: {tenth / 1e6:.0f} MB after a tenth of its time, {grown / 1e6:.0f} MB after "
              f"{last[full][0] - last[0][0]:.0f} of {last[-1][0] - last[0][0]:.0f} s, {end / 1e6:.0f} MB at the end; "
              f"{len(left)} entries in the journal for readers that come back"
              + (f", none {arguments.retention} s later" if short and not run.failures else ""))
        if short and not arguments.quick and end > 1.25 * grown:
            run.fail(f"the server's memory grew from {grown / 1e6:.0f} MB to {end / 1e6:.0f} MB")
    if run.sent_again:
        print(f"bytes of weights that servers which came back sent to workers: {run.sent_again}")
    for failure in run.failures[:5]:
        print("BROKEN:", failure)
    print(f"{len(run.failures)} broken")
    return bool(run.failures)


if __name__ == "__main__":
    campaign(main)
