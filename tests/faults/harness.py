"""Workers and generations as processes whose every output is stamped with the monotonic clock when it arrives.

All waits are bounded. Every process is the leader of its own group, dies with this one (PR_SET_PDEATHSIG) and is killed
at the end of the `with` that it belongs to. Processes are started from the main thread only: the kernel ties the
death signal to the thread that forked.
"""

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from models import DEMO, ROOT

PROGRAM = os.environ.get("BUTTERFLY_PROGRAM", os.path.join(ROOT, "build/release/bin/butterfly"))
PATIENCE_S = 60  # how long anything may take before it counts as a hang
SAMPLING = ("--temp", "0.8", "--top-k", "40", "--seed", "3", "--ignore-end")
PROMPT = "ROMEO:\nO, she doth teach the torches"
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


class Skip(Exception):
    """A campaign cannot run here; its text says what is missing."""


class Hang(Exception):
    """Something did not happen in time."""


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A command; `out` holds (time, bytes) of its stdout, `lines` (time, text) of its stderr, `ended` its exit time."""

    def __init__(self, command, namespace=None, **environment):
        if namespace:
            command = ["ip", "netns", "exec", namespace, *command]
        # The user who runs the tests may have credentials, which these tests must not use.
        env = {**os.environ, "BUTTERFLY_HOME": os.devnull, "BUTTERFLY_LOG": "info", **environment}
        self.command = [str(word) for word in command]
        self.changed = threading.Condition()
        self.out, self.lines, self.ended, self.open = [], [], None, 2
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, process_group=0, preexec_fn=_die_with_parent)
        self.pid = self.process.pid
        self.readers = [threading.Thread(target=reader, args=(pipe,), daemon=True) for reader, pipe in
                        ((self._read_out, self.process.stdout), (self._read_lines, self.process.stderr))]
        for reader in self.readers:
            reader.start()

    def _read(self, pipe, take):
        while data := os.read(pipe.fileno(), 65536):
            with self.changed:
                take(time.monotonic(), data)
                self.changed.notify_all()
        with self.changed:
            self.ended, self.open = time.monotonic(), self.open - 1
            self.changed.notify_all()
        pipe.close()

    def _read_out(self, pipe):
        self._read(pipe, lambda now, data: self.out.append((now, data)))

    def _read_lines(self, pipe):
        rest = b""

        def take(now, data):
            nonlocal rest
            *whole, rest = re.split(rb"[\r\n]", rest + data)
            self.lines += [(now, line.decode(errors="replace")) for line in whole if line]
        self._read(pipe, take)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """The whole group, at once; also when it is stopped."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def signal(self, number):
        """The moment at which the signal was sent."""
        now = time.monotonic()
        if self.process.poll() is None:
            os.kill(self.pid, number)
        return now

    def _until(self, condition, what, patience):
        with self.changed:
            if not self.changed.wait_for(lambda: condition() or self.open == 0, patience):
                raise Hang(f"{what}: not after {patience} s; stderr of {' '.join(self.command)}:\n{self.errors()}")
            return condition()

    def wait_for(self, pattern, patience=PATIENCE_S):
        """(time, match) of the first line of stderr that matches; None when the process ended without it."""
        def find():
            return next(((at, m) for at, line in self.lines if (m := re.search(pattern, line))), None)
        return self._until(find, f"the line /{pattern}/", patience)

    def wait_for_bytes(self, count, patience=PATIENCE_S):
        """False when the process ended with fewer."""
        return bool(self._until(lambda: sum(len(data) for _, data in self.out) >= count, f"{count} bytes", patience))

    def wait(self, patience=PATIENCE_S):
        """Exit code, once everything that it wrote was read."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Hang(f"still running after {patience} s: {' '.join(self.command)}\n{self.errors()}") from None
        for reader in self.readers:
            reader.join(5)
        return code

    def errors(self):
        return "\n".join(line for _, line in self.lines[-30:])

    def text(self):
        return b"".join(data for _, data in self.out)


class Worker(Process):
    """A worker on a port that the system chooses, or on `listen`. `used` remembers the addresses of all."""

    used = []

    def __init__(self, *arguments, listen="127.0.0.1:0", namespace=None, threads=1, **environment):
        if not listen.startswith("127."):
            arguments = ("--insecure", *arguments)
        super().__init__([PROGRAM, "worker", "--listen", listen, "-t", threads, *arguments], namespace, **environment)
        found = self.wait_for(r"^listening on (\S+)")
        if not found:
            self.wait()
            raise RuntimeError(f"the worker ended with {self.process.returncode} before it listened:\n{self.errors()}")
        self.address = found[1][1]
        self.used.append(self.address)


class Generation(Process):
    """`butterfly generate` over workers, with the sampling that all campaigns use."""

    def __init__(self, workers, tokens=400, model=DEMO, prompt=PROMPT, options=(), namespace=None, **environment):
        addresses = [getattr(worker, "address", worker) for worker in workers]
        extra = [] if all(address.startswith("127.") for address in addresses) else ["--insecure"]
        if "--split" not in options:
            extra += ["--split", "uniform"]  # a fault is for every worker, and the best split may leave some idle
        super().__init__([PROGRAM, "generate", "-m", model, "-p", prompt, "-n", tokens, "-t", "1", *SAMPLING,
                          "--workers", ",".join(addresses), *extra, *options], namespace, **environment)

    def next_token_after(self, fault):
        """Seconds from the fault to the end of the longest silence that began before or at it or later.

        Tokens that were on their way may still arrive after the fault; the silence that follows them is the pause.
        None when no text came after it."""
        times = [at for at, _ in self.out]
        later = [at for at in times if at > fault]
        if not later:
            return None
        before = [at for at in times if at <= fault][-1:] or [fault]
        points = before + later
        gap = max(range(1, len(points)), key=lambda i: points[i] - points[i - 1])
        return points[gap] - fault

    def longest_pause(self):
        times = [at for at, _ in self.out]
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)

    def epochs(self):
        """[(time, number, rest of the line)] as told on stderr."""
        found = [(at, re.search(r"\bepoch (\d+): (.*)", line)) for at, line in self.lines]
        return [(at, int(m[1]), m[2]) for at, m in found if m]


@functools.lru_cache(maxsize=None)
def reference(tokens=400, model=DEMO, prompt=PROMPT, options=()):
    """What one process writes: the text that every fault must leave as it is."""
    run = Process([PROGRAM, "generate", "-m", model, "-p", prompt, "-n", tokens, *SAMPLING, *options])
    with run:
        if run.wait() != 0:
            raise RuntimeError(f"the run without workers failed:\n{run.errors()}")
    return run.text()


def wrong(text):
    """The text with one letter changed: what --break compares with."""
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1:]


def free_ports(count):
    """Ports of the loopback interface that nobody listens on now."""
    import socket
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def program_offers(command, option):
    """Whether `butterfly COMMAND --help` knows the option."""
    shown = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return option in shown.stdout


def settles(condition, patience=15):
    """Whether the condition becomes true in time."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def machine_line():
    """Processor, cores and kernel, for tables."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        name = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown processor")
    return f"{name}, {os.cpu_count()} cores, Linux {os.uname().release.split('-')[0]}"


def commit():
    """What the harness was at; the program may be told apart by BUTTERFLY_COMMIT."""
    told = os.environ.get("BUTTERFLY_COMMIT")
    if told:
        return told
    if shutil.which("git") is None:
        return "unknown"
    shown = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or "unknown"


def campaign(main):
    """Runs main(); the exit code of a script: 0 held, 1 broken, 77 skipped (ctest's SKIP_RETURN_CODE), 2 hang."""
    try:
        sys.exit(1 if main() else 0)
    except Skip as skip:
        print(f"skipped: {skip}")
        sys.exit(77)
    except Hang as hang:
        print(f"HANG: {hang}")
        sys.exit(2)


