"""The two sides of bench_training.py as things that take steps: `butterfly train`, and PyTorch by training_peer.py.

Both answer with {"step_s": [...], "peak_bytes": ...}; butterfly also with its "summary" and "verdict". What cannot be
measured raises Failed with the reason in a few words, running out of memory among them.
"""

import json
import os
import resource
import subprocess
import tempfile

TIMEOUT_S = 3600
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training_peer.py")


class Failed(Exception):
    pass


def memory_limit():
    """GB of data that a process may have: nine tenths of what is free now."""
    with open("/proc/meminfo") as info:
        return next(0.9 * int(line.split()[1]) * 1024e-9 for line in info if line.startswith("MemAvailable:"))


def limited(arguments):
    limit = int(arguments.memory_limit * 1e9)
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def reason(code, errors, limit):
    text = errors.strip()
    words = ("can't allocate memory", "MemoryError", "bad_alloc", "out of memory", "Cannot allocate memory")
    if code == -9 or any(word.lower() in text.lower() for word in words):
        return f"out of memory (limit {limit:.1f} GB)"
    return f"exit code {code}: {text.splitlines()[-1][-300:] if text else 'no message'}"


class Butterfly:
    """A fresh process for each call, so that its memory is that of these steps."""

    def __init__(self, arguments, model, batch, seq, precision, threads, extra=(), warm_up=2):
        self.arguments, self.warm_up = arguments, warm_up
        self.command = [arguments.butterfly, "train", "--model", model, "--data", "synthetic:random", "--batch", str(batch),
                        "--seq", str(seq), "--precision", precision, "--threads", str(threads), "--data.validation-share", "0",
                        "--schedule", "constant", "--json", "--log", "silent", *extra]

    def start(self, steps):
        log = tempfile.NamedTemporaryFile(suffix=".jsonl")
        errors = tempfile.TemporaryFile("w+")
        command = [*self.command, "--steps", str(self.warm_up + steps), "--log-file", log.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=limited(self.arguments))
        return process, log, errors

    def finish(self, run):
        process, log, errors = run
        with process, log, errors:
            output = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode not in (0, 3):
                errors.seek(0)
                raise Failed(reason(process.returncode, errors.read(), self.arguments.memory_limit))
            summary = json.loads(output)
            steps = [event for event in map(json.loads, log) if event["event"] == "step"]
        # The largest of the ranks where they are processes of their own.
        return {"step_s": [step["step_time"] for step in steps][self.warm_up :], "peak_bytes": used.ru_maxrss * 1024,
                "summary": summary, "verdict": summary["verdict"]}

    def steps(self, count):
        return self.finish(self.start(count))


class Peer:
    """PyTorch, one process, warmed up and at rest between its turns; a context."""

    def __init__(self, arguments, model, batch, seq, precision, threads, compiled=False, warm_up=None, group=()):
        self.arguments, self.hello, self.failure = arguments, None, None
        self.command = [arguments.python, PEER, "--model", model, "--batch", str(batch), "--seq", str(seq), "--precision",
                        precision, "--threads", str(threads), *group]
        self.command += ["--compile"] if compiled else []
        self.command += ["--warm-up", str(warm_up)] if warm_up else []

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")
        environment = {**os.environ, "OMP_NUM_THREADS": self.command[self.command.index("--threads") + 1], "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env=environment, preexec_fn=limited(self.arguments))

    def __enter__(self):
        self.start()
        self.handshake()
        return self

    def handshake(self):
        """Waits until it is warmed up."""
        try:
            self.hello = self.receive()
        except Failed as failure:
            self.failure = str(failure)

    def send(self, command):
        if self.failure:
            raise Failed(self.failure)
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait(timeout=60)
            self.errors.seek(0)
            self.failure = reason(code, self.errors.read(), self.arguments.memory_limit)
            raise Failed(self.failure)
        return json.loads(line)

    def ask(self, command):
        self.send(command)
        return self.receive()

    def steps_of(self, count):
        return lambda: self.ask(f"steps {count}")

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Peers:
    """Ranks of DistributedDataParallel over Gloo, or of FSDP2; a context."""

    def __init__(self, arguments, count, sharding="none", **cell):
        self.folder = tempfile.TemporaryDirectory()
        meeting = os.path.join(self.folder.name, "rendezvous")
        self.peers = [Peer(arguments, **cell, group=["--ranks", str(count), "--rank", str(rank), "--rendezvous", meeting, "--sharding", sharding])
                      for rank in range(count)]

    def __enter__(self):
        for peer in self.peers:
            peer.start()
        for peer in self.peers:
            peer.handshake()
        return self

    def steps(self, count, word):
        for peer in self.peers:
            peer.send(f"{word} {count}")
        answers = [peer.receive() for peer in self.peers]
        return {"step_s": [sum(both) / len(both) for both in zip(*(answer["step_s"] for answer in answers))],
                "peak_bytes": sum(answer["peak_bytes"] for answer in answers)}

    def __exit__(self, *_):
        for peer in self.peers:
            peer.process.stdin.close()
        for peer in self.peers:
            peer.__exit__()
        self.folder.cleanup()
