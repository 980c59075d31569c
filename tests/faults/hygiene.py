#!/usr/bin/env python3
"""Proves: stopping anything at any moment leaves nothing behind, and nothing hangs.

    interrupts of the coordinator and of workers at random moments         a second worker on a port that is in use
    a port is free again at once after SIGKILL                             the wall clock jumps by an hour, both ways
    a reader who leaves early (generate | head)                            descriptors and threads of a worker stay few
    no process and no open port outlives its command                       processes of a killed harness die with it

    hygiene.py [--quick] [--rounds N] [--seed S] [--break]

--break: a listener that is not ours keeps a port open and the checks for leaks must find it.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import harness
import wall_clock
from harness import DEMO, PROGRAM, PROMPT, SAMPLING, Generation, Hang, Skip, Worker, free_ports, open_files, reference, settles

LOAD = {"tokens": 200}
INTERRUPTED = 130
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) {
  const char* late = getenv("HYGIENE_LATE");
  const char* early = getenv("HYGIENE_EARLY");
  return early && access(early, F_OK) == 0 ? -3600 : late && access(late, F_OK) == 0 ? 3600 : 0;
}
""" + wall_clock.SHIM


class Broken(Exception):
    """A promise was not kept."""


def must(holds, sentence):
    if not holds:
        raise Broken(sentence)


def same_text(workers, what):
    with Generation(workers, **LOAD) as run:
        code = run.wait()
        must(code == 0 and run.text() == reference(**LOAD), f"{what}: exit code {code}: {run.errors()}")


def the_coordinator_is_interrupted_at_random_moments(options, generator):
    with Worker() as a, Worker() as b:
        for _ in range(options.rounds):
            number = generator.choice((signal.SIGINT, signal.SIGTERM))
            wait = generator.uniform(0.0, 0.5)
            with Generation([a, b], **LOAD) as run:
                time.sleep(wait)
                at = run.signal(number)
                code = run.wait(20)
            told = f"{number.name} after {wait:.3f} s: exit code {code}"
            # Before its handler is there a process dies of the signal itself.
            must(code in (0, INTERRUPTED) or (code == -number and wait < 0.1), f"{told}: {run.errors()}")
            must(run.ended - at < 10, f"{told} only after {run.ended - at:.1f} s")
            must(reference(**LOAD).startswith(run.text().rstrip(b"\n")), f"{told}: the text until then differs")
            same_text([a, b], f"the generation after {told}")


def workers_are_interrupted_at_random_moments(options, generator):
    """The only worker: the generation ends with a sentence, the worker with 0, whatever it was doing."""
    for _ in range(options.rounds):
        number = generator.choice((signal.SIGINT, signal.SIGTERM))
        wait = generator.uniform(0.0, 0.6)
        with Worker() as a, Worker() as b, Generation([a, b], **LOAD) as run:
            time.sleep(wait)
            a.signal(number)
            told = f"{number.name} after {wait:.3f} s"
            code, text_code = a.wait(30), run.wait()
            must(code == 0, f"{told}: the worker ended with {code}: {a.errors()}")
            if text_code == 0:
                must(run.text() == reference(**LOAD), f"{told}: another text")
            else:
                must(text_code == 2 and a.address in run.errors(), f"{told}: the coordinator ended with {text_code}: {run.errors()}")


def a_port_in_use_is_said(options, generator):
    with Worker() as worker:
        second = subprocess.run([PROGRAM, "worker", "--listen", worker.address], capture_output=True, text=True, timeout=30, check=False)
        must(second.returncode == 2, f"exit code {second.returncode}: {second.stderr}")
        sentence = [line for line in second.stderr.splitlines() if line.startswith("butterfly: ")]
        must(len(sentence) == 1 and worker.address in sentence[0], f"no sentence with {worker.address}: {second.stderr}")
        same_text([worker], "the first worker afterwards")


def a_port_is_free_at_once(options, generator):
    """After SIGKILL and after SIGTERM in the middle of a generation, with connections left in TIME_WAIT."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        with Worker(listen=address) as worker, Generation([worker], **LOAD) as run:
            run.wait_for_bytes(10)
            run.signal(signal.SIGKILL)
            worker.signal(number)
            worker.wait(30)
    with Worker(listen=address) as worker:
        same_text([worker], "a worker on the old port")


def the_wall_clock_may_jump(options, generator):
    """Interposed in both programs; only calls of the C library are deceived, not sleeping in the kernel."""
    compiler = shutil.which("cc")
    if not compiler:
        raise Skip("no C compiler (package gcc) for the library that deceives the clock")
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "clock.c"), os.path.join(folder, "clock.so")
        with open(source, "w", encoding="ascii") as out:
            out.write(CLOCK)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=60)
        late, early = os.path.join(folder, "late"), os.path.join(folder, "early")
        env = {"LD_PRELOAD": library, "HYGIENE_LATE": late, "HYGIENE_EARLY": early}
        shown = subprocess.run(["date", "+%s"], env={**os.environ, **env, "HYGIENE_LATE": folder}, capture_output=True, text=True, timeout=30, check=True)
        must(int(shown.stdout) > time.time() + 3000, "the library does not deceive even `date`")
        with Worker(**env) as a, Worker(**env) as b, Generation([a, b], tokens=450, **env) as run:
            run.wait_for_bytes(10)
            for file in (late, early):
                with open(file, "w", encoding="ascii"):
                    pass
                run.wait_for_bytes(len(run.text()) + 100)
            code = run.wait()
            must(code == 0 and run.text() == reference(tokens=450), f"exit code {code}: {run.errors()}")
            must(not [e for e in run.epochs() if e[1] > 1], f"a jump of the clock counted as a death: {run.epochs()}")


def a_reader_may_leave_early(options, generator):
    with Worker() as worker:
        command = [PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "400", *SAMPLING, "--workers", worker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            run.stdout.read(10)
            run.stdout.close()
            try:
                run.wait(30)
            except subprocess.TimeoutExpired:
                run.kill()
                raise Broken("the coordinator goes on without a reader") from None
        same_text([worker], "the generation after it")


def a_worker_stays_small(options, generator):
    """Coordinators come, are killed, and leave no descriptor and no thread behind."""
    with Worker() as a, Worker() as b:
        same_text([a, b], "the first")

        def size():
            return open_files(a.pid), len(os.listdir(f"/proc/{a.pid}/task"))
        time.sleep(0.5)
        before = size()
        for _ in range(options.rounds):
            with Generation([a, b], **LOAD) as run:
                time.sleep(generator.uniform(0.02, 0.4))
                run.signal(signal.SIGKILL)
                run.wait()
        same_text([a, b], "the last")
        must(settles(lambda: size()[0] <= before[0] and size()[1] <= before[1]), f"(descriptors, threads) grew from {before} to {size()}")


def a_killed_harness_takes_its_processes_along(options, generator):
    script = "import sys, time; from harness import Worker\nw = Worker(); print(w.pid, w.address, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}) as owner:
        pid, address = owner.stdout.readline().split()
        owner.kill()
        owner.wait()
    must(settles(lambda: not os.path.exists(f"/proc/{pid}")), f"the worker {pid} on {address} lives on")


def processes_of_ours(mark):
    """Ids of living processes that carry our mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if mark in environ.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def listening_ports():
    """Loopback ports with a listener."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}


def leaks(mark, used):
    """Sentences about what outlived its command."""
    ours = {int(address.rsplit(":", 1)[1]) for address in used}
    return [f"process {pid} lives on" for pid in processes_of_ours(mark)] + [
        f"port {port} is still open" for port in sorted(ours & listening_ports())]


CASES = (a_port_in_use_is_said, a_port_is_free_at_once, the_wall_clock_may_jump, a_reader_may_leave_early, a_worker_stays_small,
         a_killed_harness_takes_its_processes_along, the_coordinator_is_interrupted_at_random_moments,
         workers_are_interrupted_at_random_moments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    options.rounds = 5 if options.quick else options.rounds
    generator = random.Random(options.seed)
    print(f"seed {options.seed}")
    os.environ["BUTTERFLY_FAULTS_MARK"] = f"hygiene-{os.getpid()}"
    mark = f"BUTTERFLY_FAULTS_MARK=hygiene-{os.getpid()}".encode()
    broken = 0
    if options.wrong:
        stranger = socket.create_server(("127.0.0.1", 0))
        Worker.used.append(f"127.0.0.1:{stranger.getsockname()[1]}")
    for case in () if options.wrong else CASES:
        name = case.__name__.replace("_", " ")
        begin = time.monotonic()
        try:
            case(options, generator)
            print(f"{name}: held ({time.monotonic() - begin:.1f} s)", flush=True)
        except Skip as skip:
            print(f"{name}: skipped: {skip}", flush=True)
        except (Broken, Hang, RuntimeError) as reason:
            broken += 1
            print(f"BROKEN: {name}: {reason}", flush=True)
    for sentence in leaks(mark, Worker.used):
        broken += 1
        print(f"BROKEN: {sentence}")
    print(f"{len(Worker.used)} workers, {broken} complaints")
    return broken


if __name__ == "__main__":
    harness.campaign(main)
