"""A server of the program for tests, and a client of it in the standard library."""

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time

from program import DEMO, PROGRAM, SANITIZED, environment

TEMPLATE = ("{% for m in messages %}{{ m.role | upper + ':\\n' + (m.content or '') + '\\n\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'JULIET:\\n' }}{% endif %}")
TIMEOUT_S = 240 if SANITIZED else 60


class Server:
    """A server on a port that the system chooses; killed, if it still lives, at the end of a `with`."""

    def __init__(self, *arguments, model=DEMO, journal="off", listen="127.0.0.1:0", log=None, wait=True):
        self.log = log or tempfile.NamedTemporaryFile(suffix=".log")
        self.log_begin = os.path.getsize(self.log.name)  # a server before this one may have written there
        with open(self.log.name, "ab") as stderr:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "-m", model, "--threads", "1", "--listen", listen, "--journal", journal, *arguments],
                stderr=stderr, stdout=subprocess.DEVNULL, env=environment())
        if wait:
            self.address = self.wait_for(r"ready at https?://(\S+)").group(1)

    def log_text(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as file:
            file.seek(self.log_begin)
            return file.read()

    def wait_for(self, pattern):
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            found = list(re.finditer(pattern, self.log_text()))
            if found:
                return found[-1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"no {pattern} in the log of the server:\n{self.log_text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """Exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=TIMEOUT_S)

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)

    def send(self, method, path, body=None, headers=None):
        """A connection whose request is sent, and its answer not read yet."""
        connection = self.connect()
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, headers or {})
        return connection

    def ask(self, path, body=None, method=None, headers=None):
        """Status, headers and parsed body (or bytes, where it is no JSON)."""
        connection = self.send(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        try:
            content = json.loads(content)
        except ValueError:
            pass
        return answer.status, dict(answer.getheaders()), content

    def good(self, path, body=None, **options):
        status, _, content = self.ask(path, body, **options)
        assert status == 200, (status, content)
        return content

    def stream(self, path, body, headers=None):
        """The events of a whole stream: (id, data or name and data) each, data parsed but for [DONE]."""
        connection = self.send("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, (answer.status, content)
        connection.close()
        return content

    def metric(self, name):
        text = self.ask("/metrics")[2].decode()
        found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        assert found, f"no {name} in {text}"
        return float(found.group(1))


def events(content):
    """[(id, name, data)] of a stream's bytes."""
    found = []
    for block in content.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "data" in fields:
            data = fields["data"]
            found.append((int(fields["id"]), fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def read_some(connection, count):
    """The bytes of the first `count` events of a stream that goes on."""
    answer = connection.getresponse()
    content = b""
    while content.count(b"\n\n") < count:
        content += answer.read1(1 << 16)
    return b"".join(event + b"\n\n" for event in content.split(b"\n\n")[:count])


def write_template(folder, text=TEMPLATE):
    path = os.path.join(folder, "template.jinja")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path
