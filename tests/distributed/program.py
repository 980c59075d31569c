"""Runs the butterfly program for tests: whole commands, and workers on ports that the system chooses."""

import os
import signal
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("BUTTERFLY_PROGRAM", os.path.join(ROOT, "build/release/bin/butterfly"))
DEMO = os.path.join(ROOT, "models/demo.gguf")
TIMEOUT_S = 120


def _is_sanitized():
    try:
        with open(PROGRAM, "rb") as program:
            content = program.read()
    except OSError:
        return False  # the first test says that it is missing
    return b"libtsan.so" in content or b"libasan.so" in content


SANITIZED = _is_sanitized()


def environment(isa=None, **extra):
    # The user who runs the tests may have credentials, which these tests must not use.
    env = dict(os.environ, BUTTERFLY_LOG="info", BUTTERFLY_HOME=os.devnull)
    env.update(extra)
    env.pop("BUTTERFLY_ISA", None)
    if isa:
        env["BUTTERFLY_ISA"] = isa
    return env


def butterfly(*arguments, isa=None, text=False, **options):
    """The finished process, with stdout and stderr as bytes (or text)."""
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=TIMEOUT_S, text=text,
                          env=environment(isa), **options)


def supported_isas():
    import json
    shown = butterfly("inspect", "--machine", "--json")
    return [peak["isa"] for peak in json.loads(shown.stdout)["peaks"]]


class Worker:
    """A worker process; killed, if it still lives, at the end of a `with`."""

    def __init__(self, *arguments, isa=None):
        self.log = tempfile.NamedTemporaryFile(suffix=".log")
        listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen([PROGRAM, "worker", *listen, "--threads", "1", *arguments],
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(isa))
        line = b""
        while not line.startswith(b"listening on "):
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError("the worker ended before it listened")
        self.address = line.split()[2].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.log.close()

    def terminate(self):
        """Exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=10)
