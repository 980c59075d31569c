"""Attacks on a cluster: other names of a worker, workers that are none, links to nowhere, other versions. Run by attacks.py."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import harness
import speaker
from attack_kit import DEMO, Skipped, case, must, refused, run
from harness import Generation, Process, Worker, free_ports, reference, settles

END_S = 2.5  # for a node that shall end, whatever it waits for
SLOW_NAMES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
  static int (*real)(const char*, const char*, const struct addrinfo*, struct addrinfo**);
  if (!real) real = (int (*)(const char*, const char*, const struct addrinfo*, struct addrinfo**))dlsym(RTLD_NEXT, "getaddrinfo");
  if (node && strcmp(node, "silent.example") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
    write(2, "asking\\n", 7);
    sleep(60);
  }
  return real(node, service, hints, found);
}
"""


def library(folder, name, source):
    """A library to preload that deceives a program."""
    compiler = shutil.which("cc")
    if not compiler:
        raise Skipped("no C compiler (package gcc) for a library that deceives the program")
    path = os.path.join(folder, name)
    with open(path + ".c", "w", encoding="ascii") as out:
        out.write(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path + ".so", path + ".c", "-ldl"], check=True, timeout=60)
    return path + ".so"


def must_write(generation, tokens, options=()):
    """The text of one process, and nothing else."""
    code = generation.wait()
    expected = reference(tokens=tokens, options=options)
    must(expected and code == 0 and generation.text() == expected,
         f"exit code {code}, {'the same' if generation.text() == expected else 'another'} text: {generation.errors()[-600:]}")


def must_end(process, what, number=signal.SIGTERM):
    at = process.signal(number)
    code = process.wait(20)
    must(process.ended - at < END_S, f"{what} ended {process.ended - at:.1f} s after {number.name}")
    return code


class Tarpit:
    """Takes connections, and says nothing."""

    def __init__(self):
        self.listener = socket.create_server(("", 0), backlog=4096)  # at every address of this machine
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def joining(port, tokens=400, workers=(), options=(), **environment):
    """A generation at whose door workers may join."""
    return Generation(workers or ["127.0.0.1:1"], tokens=tokens, options=("--join-at", f"127.0.0.1:{port}", *options), **environment)


def without_workers(port, *options, **environment):
    return Process([harness.PROGRAM, "generate", "-m", DEMO, "-p", harness.PROMPT, "-n", 400, "-t", 1, *harness.SAMPLING, "--split", "uniform",
                    "--join-at", f"127.0.0.1:{port}", *options], **environment)


class Neighbour:
    """A worker that announces itself from another host of this machine: by a relay, since a worker chooses no source."""

    def __init__(self, host, door):
        self.worker = Worker()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._announce, args=(host, door), daemon=True)
        self.thread.start()

    def _announce(self, host, door):
        while not self.over.wait(0.5):
            with contextlib.suppress(OSError):
                speaker.announce(f"127.0.0.1:{door}", self.worker.address, source=host)

    def __enter__(self):
        return self.worker

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.worker.kill()


@case
def one_worker_by_two_names(_):
    with Worker() as worker:
        port = worker.address.rsplit(":", 1)[1]
        for other in (f"localhost:{port}", f"[::ffff:127.0.0.1]:{port}"):
            wrong = refused(run("generate", "-m", DEMO, "-p", "x", "-n", "2", "--workers", f"{worker.address},{other}"), re.escape(worker.address),
                            re.escape(other), "are one worker: name it once")
            if wrong:
                return f"{other}: {wrong}"
    return ""


@case
def aliases_cost_no_epochs(_):
    """A worker that announces itself by another name than it was given by, and dies, and comes back, while strangers announce aliases."""
    port, door = free_ports(2)
    aliases = (f"127.0.0.1:{port}", f"[::ffff:127.0.0.1]:{port}", f"[::ffff:7f00:1]:{port}")
    options = {"listen": f"127.0.0.1:{port}", "BUTTERFLY_LOG": "info"}
    over = threading.Event()

    def shout():
        while not over.wait(0.005):
            for alias in aliases:
                with contextlib.suppress(OSError):
                    speaker.announce(f"127.0.0.1:{door}", alias)

    with Worker("--join", f"127.0.0.1:{door}", **options) as first, Worker() as other:
        with joining(door, workers=[f"localhost:{port}", other.address]) as run_of_all:
            run_of_all.wait_for_bytes(10)
            stranger = threading.Thread(target=shout, daemon=True)
            stranger.start()
            try:
                run_of_all.wait_for_bytes(200)
                first.kill()
                run_of_all.wait_for_bytes(400)
                with Worker("--join", f"127.0.0.1:{door}", **options):
                    must_write(run_of_all, 400)
            finally:
                over.set()
            # After the first, which is not told: one for its death, one for its return.
            must(len(run_of_all.epochs()) <= 2, f"{len(run_of_all.epochs())} epochs for two events: {run_of_all.epochs()}")
    return ""


@case
def an_end_while_links_are_measured(_):
    """Everything that asks or is asked how fast 256 silent addresses are ends when it shall."""
    with Tarpit() as tarpit:
        for number in (signal.SIGTERM, signal.SIGINT):
            with Worker() as worker, speaker.call(worker.address, speaker.STATUS) as client:
                body = b"".join(speaker.field(1, tarpit.address) for _ in range(256))
                speaker.say(client, speaker.MEASURE_LINKS, body)
                time.sleep(0.3)
                must_end(worker, "a worker that measures 256 links", number)
        hushed = speaker.member()
        with Worker() as worker, speaker.FakeWorker(hushed) as fake:
            with Generation([worker.address, fake.address], options=("--measure-links",)) as run_of_both:
                run_of_both.wait_for("measuring the links")
                must(settles(lambda: speaker.PROBE in fake.met, 20), "nobody measured the link to the other worker")
                must_end(worker, "a worker whose coordinator measures links")
                must_end(run_of_both, "a coordinator that measures links", signal.SIGINT)
    return ""


@case
def an_end_among_dead_addresses(_):
    """A coordinator that dials 256 addresses where nobody answers, and one whose workers never say hello."""
    with Tarpit() as tarpit:
        for workers in (False, True):
            (door,) = free_ports(1)
            with contextlib.ExitStack() as stack:
                if workers:
                    run_of_all = stack.enter_context(joining(door, workers=[stack.enter_context(Worker())], tokens=4000))
                    run_of_all.wait_for_bytes(1)
                else:
                    run_of_all = stack.enter_context(without_workers(door))
                    run_of_all.wait_for("may join at")
                for i in range(256):
                    try:
                        speaker.announce(f"127.0.0.1:{door}", f"127.0.{i}.1:{tarpit.port}", source=f"127.0.1.{1 + i // 16}")
                    except ConnectionError:
                        run_of_all.process.wait(5)  # the text may have come to its end meanwhile
                        break
                time.sleep(0.5)
                must_end(run_of_all, f"a coordinator that dials, {'with' if workers else 'without'} a worker", signal.SIGINT)
        with Process([harness.PROGRAM, "generate", "-m", DEMO, "-p", "x", "--workers", tarpit.address]) as starting:
            time.sleep(0.5)
            must_end(starting, "a coordinator whose worker does not answer", signal.SIGINT)

    def measure_for_ever(one, role, _):
        while role == speaker.CONTROL:
            speaker.say(one, speaker.MEASURING)
            time.sleep(0.2)
    with speaker.FakeWorker(measure_for_ever) as fake:
        with Process([harness.PROGRAM, "generate", "-m", DEMO, "-p", "x", "--workers", fake.address]) as starting:
            must(starting.wait_for("measures its speed first"), "it does not wait for a worker that measures")
            must_end(starting, "a coordinator whose worker measures", signal.SIGINT)
        (door,) = free_ports(1)
        with without_workers(door) as waiting:
            waiting.wait_for("may join at")
            speaker.announce(f"127.0.0.1:{door}", fake.address)
            must(waiting.wait_for("measures its speed first"), "it does not wait for a worker that measures")
            must_end(waiting, "a coordinator whom a worker that measures joins", signal.SIGINT)
    return ""


@case
def an_end_while_a_name_is_looked_up(folder):
    """A resolver that is silent for a minute holds nobody."""
    deceived = {"LD_PRELOAD": library(folder, "names", SLOW_NAMES)}
    silent = "silent.example:7000"
    with Worker("--join", silent, **deceived) as worker:
        must(worker.wait_for("asking"), "the library does not deceive the worker")
        must_end(worker, "a worker that announces itself")
    with Worker(**deceived) as worker, speaker.call(worker.address, speaker.STATUS) as client:
        speaker.say(client, speaker.MEASURE_LINKS, speaker.field(1, silent) * 3)
        must(worker.wait_for("asking"), "the worker asks no resolver")
        must_end(worker, "a worker that measures a link")
    with Process([harness.PROGRAM, "generate", "-m", DEMO, "-p", "x", "--workers", silent], **deceived) as starting:
        must(starting.wait_for("asking"), "the coordinator asks no resolver")
        must_end(starting, "a coordinator that looks for its worker", signal.SIGINT)
    return ""


@case
def announcements_of_nobody(_):
    """One host announces 256 silent addresses without a pause; honest workers of that host and of another one join in bounded time."""
    (door,) = free_ports(1)
    over = threading.Event()
    with Tarpit() as tarpit, without_workers(door, "--recover-within", 120) as waiting:
        waiting.wait_for("may join at")

        def shout():
            while not over.is_set():
                for i in range(256):
                    with contextlib.suppress(OSError):
                        speaker.announce(f"127.0.0.1:{door}", f"127.0.{i}.1:{tarpit.port}", source="127.0.0.9")

        stranger = threading.Thread(target=shout, daemon=True)
        stranger.start()
        try:
            time.sleep(3)
            began = time.monotonic()
            for whose, most, worker in (("another", 10, Worker("--join", f"127.0.0.1:{door}")), ("that", 60, Neighbour("127.0.0.9", door))):
                began = time.monotonic()
                with worker as honest:
                    must(honest.wait_for("coordinator .* connected", 90), f"an honest worker of {whose} host is not dialled")
                    told = time.monotonic() - began
                    must(told < most, f"an honest worker of {whose} host was dialled after {told:.1f} s")
        finally:
            over.set()
            stranger.join()
    return ""


@case
def another_version(_):
    """One sentence with both numbers, and nobody waits."""
    mine = speaker.protocol()
    for other in (mine - 1, mine + 1):
        with speaker.FakeWorker(speaker.member(), version=other) as fake:
            numbers = (re.escape(fake.address), rf"speaks protocol {other}\b", rf"this program {mine}\b")
            for command in (("generate", "-m", DEMO, "-p", "x", "-n", "2"), ("train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "2")):
                wrong = refused(run(*command, "--workers", fake.address), *numbers)
                if wrong:
                    return f"a worker of version {other}, {command[0]}: {wrong}"
            code, out, errors = run("cluster", "status", fake.address)
            shown = out.decode() + errors
            must(code != 0 and f"protocol {other}" in shown and f"program {mine}" in shown, f"status {code} of a node of version {other}: {shown}")
            (door,) = free_ports(1)
            with Worker() as worker, joining(door, workers=[worker], tokens=100) as with_a_stranger:
                with_a_stranger.wait_for("may join at")
                speaker.announce(f"127.0.0.1:{door}", fake.address)
                must_write(with_a_stranger, 100)
        with Worker() as worker:
            with socket.create_connection(speaker.split(worker.address), timeout=5) as one:
                one.sendall(speaker.hello(speaker.CONTROL, "old", version=other))
                answer = speaker.exactly(one, 16)
                must(answer[:8] == b"BFLYhere" and int.from_bytes(answer[8:10], "little") == mine, f"a coordinator of version {other} hears {answer}")
            found = worker.wait_for(rf"refused .*speaks protocol {other}, this program {mine}\b", 5)
            must(found, f"the worker says nothing of a coordinator of version {other}: {worker.errors()}")
    return ""
