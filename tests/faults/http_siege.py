#!/usr/bin/env python3
"""Sends a server what clients should not send: it has to refuse it, stay alive and stay small.

    tests/faults/http_siege.py [--quick] [--seed N]

Random bytes and mutated requests, deep and broken JSON, bodies that are too large, clients that send or read slowly, and
thousands of connections that do nothing. After each, /health answers, a text is the one that it was, and the memory of
the process is within its limit. Exit status 0: all held; 1: something did not, as stdout says.
"""

import argparse
import json
import os
import random
import resource
import select
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "distributed"))
from program import SANITIZED  # noqa: E402
from serve_kit import Server, write_template  # noqa: E402

TEXT = {"prompt": "ROMEO:", "max_tokens": 8, "seed": 3, "temperature": 0.9}
HEADERS = b"Host: x\r\nContent-Type: application/json\r\n"
WORDS = ["prompt", "messages", "role", "content", "user", "tools", "n", "stop", "stream", "seed", "logprobs", "echo",
         "response_format", "type", "json_schema", "schema", "input", "tokens", "logit_bias", "max_tokens", "function",
         "name", "parameters", "tool_choice", "tool_calls", "model", "grammar", "guided_regex", "stream_options"]


def memory(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) * 1024


def post(path, body, length=None):
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\n".encode() + HEADERS + f"Content-Length: {size}\r\n\r\n".encode() + body


def dial(server):
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def exchange(server, data, wait=2.0, enough=b""):
    """What comes back within the time, or up to `enough`; the server may cut the connection."""
    with dial(server) as connection:
        connection.settimeout(wait)
        answer = b""
        try:
            connection.sendall(data)
            if not enough:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
                if enough and enough in answer:
                    break
        except OSError:
            pass
        return answer


class Siege:
    def __init__(self, server, quick, seed):
        self.server = server
        self.quick = quick
        self.random = random.Random(seed)
        self.failures = 0
        self.text = server.good("/v1/completions", TEXT)["choices"][0]["text"]
        self.base = memory(server)

    def check(self, name, detail="", extra=256 << 20):
        """The server lives, answers as before, and is not much larger than it was."""
        problems = []
        if self.server.process.poll() is not None:
            problems.append(f"the server ended with {self.server.process.returncode}")
        else:
            begin = time.monotonic()
            if self.server.ask("/health")[0] != 200:
                problems.append("/health does not answer 200")
            seconds = time.monotonic() - begin
            if seconds > (20 if SANITIZED else 5):
                problems.append(f"/health took {seconds:.1f} s")
            if self.server.good("/v1/completions", TEXT)["choices"][0]["text"] != self.text:
                problems.append("the text is another one")
            grown = memory(self.server) - self.base
            detail += f", {grown / 2**20:.1f} MiB more"
            if grown > extra and not SANITIZED:
                problems.append(f"{grown} bytes more, {extra} are the limit")
        print(f"{'FAIL' if problems else 'ok  '} {name}{detail} {'; '.join(problems)}", flush=True)
        self.failures += bool(problems)

    def random_value(self, depth=0):
        draw = self.random
        kind = draw.randrange(9 if depth < 4 else 6)
        if kind < 6:
            return [None, draw.random() < 0.5, draw.randrange(-3, 70), draw.choice(["", "text", "auto", "user", "é"]),
                    draw.uniform(-5, 5), draw.choice([2 ** 63, -2 ** 63, 1e300, 10 ** 30])][kind]
        if kind == 6:
            return [self.random_value(depth + 1) for _ in range(draw.randrange(4))]
        return {draw.choice(WORDS): self.random_value(depth + 1) for _ in range(draw.randrange(5))}

    def change(self, value):
        """The value with one thing in it replaced, taken out or put in."""
        draw = self.random
        if not isinstance(value, (dict, list)) or not value or draw.random() < 0.15:
            return self.random_value()
        if isinstance(value, list):
            at = draw.randrange(len(value))
            return value[:at] + ([self.change(value[at])] if draw.random() < 0.8 else []) + value[at + 1:]
        changed = dict(value)
        name = draw.choice(list(changed))
        if draw.random() < 0.1:
            changed[draw.choice(WORDS)] = self.random_value()
        elif draw.random() < 0.1:
            del changed[name]
        else:
            changed[name] = self.change(changed[name])
        return changed

    def shapes(self):
        """JSON of any shape: never anything but a refusal in the API's form, or an answer."""
        count = 300 if self.quick else 5000
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
        chat = {"model": "demo", "max_tokens": 2, "n": 1, "stop": ["x"], "logprobs": True, "top_logprobs": 2,
                "logit_bias": {"5": 1}, "tools": [tool], "tool_choice": "auto", "temperature": 1, "seed": 1,
                "response_format": {"type": "text"}, "chat_template_kwargs": {"a": 1}, "messages": [
                    {"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "1", "content": "b"}, {"role": "user", "content": "c"}]}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": tool["function"]["parameters"]}}
        bodies = [("/v1/chat/completions", chat),
                  ("/v1/chat/completions", dict(chat, response_format=schema, max_tokens=30)),
                  ("/v1/chat/completions", dict(chat, tool_choice={"type": "function", "function": {"name": "f"}},
                                                max_tokens=30)),
                  ("/v1/completions", {"prompt": ["a", [5, 6]], "max_tokens": 2, "echo": True, "logprobs": 2, "n": 2,
                                       "stop": "x", "logit_bias": {"5": 1}, "stop_token_ids": [7], "top_p": 0.9}),
                  ("/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "stream": True,
                                       "stream_options": {"include_usage": True}, "guided_regex": "[ab]{1,3}"}),
                  ("/v1/responses", {"input": [{"role": "user", "content": "a"},
                                               {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                                               {"type": "function_call_output", "call_id": "1", "output": "b"}],
                                     "max_output_tokens": 2, "instructions": "c", "text": {"format": {"type": "text"}},
                                     "reasoning": {"effort": "low"}, "tools": [{"type": "function", "name": "f"}]}),
                  ("/v1/embeddings", {"input": ["a", [5]], "encoding_format": "float"}),
                  ("/tokenize", {"prompt": "a", "with_pieces": True}), ("/detokenize", {"tokens": [5, 6]})]
        statuses = {}
        for _ in range(count):
            path, body = self.random.choice(bodies)
            for _ in range(self.random.randrange(1, 3)):
                body = self.change(body)
            try:
                status, _, content = self.server.ask(path, json.dumps(body).encode(), method="POST")
            except OSError as error:
                status, content = 0, str(error)
            statuses[status] = statuses.get(status, 0) + 1
            fine = status == 200 or (isinstance(content, dict) and set(content.get("error", ())) ==
                                     {"message", "type", "param", "code"})
            if not fine or status >= 500:
                print(f"FAIL {path} {json.dumps(body)}: {status} {content}")
                self.failures += 1
            if status == 0:
                break
        self.check("random shapes", f": {statuses}")

    def bytes(self):
        count = 100 if self.quick else 3000
        whole = post("/v1/completions", json.dumps(TEXT).encode())
        for _ in range(count):
            data = bytearray(whole)
            for _ in range(self.random.randrange(1, 8)):
                at = self.random.randrange(len(data))
                what = self.random.randrange(3)
                if what == 0:
                    data[at] = self.random.randrange(256)
                elif what == 1:
                    del data[at:at + self.random.randrange(9)]
                else:
                    data[at:at] = bytes(self.random.randrange(256) for _ in range(self.random.randrange(9)))
            exchange(self.server, bytes(data), wait=0.5)
        for data in (b"", b"\0" * 4096, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 100,
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: x\r\n\r\nffffffffffff\r\n",
                     b"GET /" + b"a" * (1 << 16) + b" HTTP/1.1\r\n\r\n",
                     b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
                     post("/v1/completions", b"{}", length=-1), post("/v1/completions", b"{}", length=10 ** 30)):
            exchange(self.server, data, wait=0.5)
        self.check("mutated requests")

    def json(self):
        for body in (b"[" * 10 ** 6, b'{"a":' * 10 ** 5, b'{"prompt":"\xff\xfe"}', b'{"prompt":"\\ud800"}', b'"' * 10 ** 6,
                     b"1e999999", b'{"prompt":' + b"9" * 10 ** 6 + b"}", b'{"' + b"k" * 10 ** 6 + b'":1}',
                     json.dumps({"prompt": "a" * (15 << 20)}).encode(),
                     json.dumps({"prompt": ["a"] * 10 ** 6}).encode(),
                     json.dumps({"prompt": list(range(10 ** 6))}).encode()):
            answer = exchange(self.server, post("/v1/completions", body), wait=60, enough=b"}}")
            if not answer.startswith(b"HTTP/1.1 400"):
                print(f"FAIL {body[:40]}: {answer[:200]}")
                self.failures += 1
        self.check("deep, broken and long JSON", extra=512 << 20)

    def large_bodies(self):
        size = (40 if self.quick else 100) << 20
        answer = exchange(self.server, post("/v1/completions", b" " * size), wait=60, enough=b"}}")
        detail = f": {answer[:12].decode()}"
        many = [dial(self.server) for _ in range(40)]
        before = memory(self.server)
        piece = b" " * (1 << 20)
        for connection in many:
            connection.sendall(post("/v1/completions", b"", length=16 << 20))
        for _ in range(3 if self.quick else 15):
            for connection in many:
                connection.sendall(piece)
        peak = memory(self.server) - before
        for connection in many:
            connection.close()
        if not answer.startswith(b"HTTP/1.1 413") or peak > 700 << 20:
            print(f"FAIL large bodies{detail}, {peak / 2**20:.0f} MiB at most")
            self.failures += 1
        time.sleep(2)
        self.check("large bodies", detail + f", {peak / 2**20:.0f} MiB meanwhile")

    def busy(self):
        return any(self.server.metric("butterfly_requests_" + state) > 0 for state in ("running", "waiting"))

    def slow_readers(self):
        body = json.dumps(dict(TEXT, n=8, max_tokens=500, ignore_eos=True, stream=True, logprobs=20)).encode()
        readers = [dial(self.server) for _ in range(2 if self.quick else 16)]
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(post("/v1/completions", body))
        end, cut = time.monotonic() + 120, 0
        # Texts that end by themselves before their stream is cut are not cancelled.
        while self.busy() or (cut := self.server.metric("butterfly_requests_cancelled_total")) < len(readers):
            if time.monotonic() > end:
                print(f"FAIL {cut} texts were cut that nobody read, of {8 * len(readers)}")
                self.failures += 1
                break
            time.sleep(0.2)
        self.check("clients that do not read")
        for reader in readers:
            reader.close()

    def slow_senders(self):
        data = post("/v1/completions", json.dumps(TEXT).encode())
        senders = [dial(self.server) for _ in range(50 if self.quick else 500)]
        for i, sender in enumerate(senders):
            sender.sendall(data[:1 + i % (len(data) - 1)])
        self.check("clients that do not send on")
        for sender in senders:
            sender.close()

    def idle(self):
        wanted = 1000 if self.quick else 10_000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted + 200)), hard))
        before = memory(self.server)
        connections = []
        try:
            for _ in range(wanted):
                connections.append(dial(self.server))
        except OSError as error:
            print(f"     {len(connections)} connections: {error}")
        time.sleep(1)
        held = self.server.metric("butterfly_connections")
        each = (memory(self.server) - before) / max(1, len(connections))
        if held < len(connections) or each > 64 << 10:
            print(f"FAIL {held} connections of {len(connections)} are held, {each:.0f} bytes each")
            self.failures += 1
        self.check(f"{len(connections)} idle connections", f": {each:.0f} bytes each", extra=1 << 30)
        for connection in connections:
            connection.close()

    def hang_ups(self):
        body = json.dumps(dict(TEXT, max_tokens=500, n=2, ignore_eos=True, stream=True)).encode()
        for i in range(20 if self.quick else 300):
            connection = dial(self.server)
            connection.sendall(post("/v1/completions", body))
            if i % 2:
                select.select([connection], [], [], 1)
            connection.close()
        end = time.monotonic() + 30
        while self.server.metric("butterfly_requests_running") > 0 and time.monotonic() < end:
            time.sleep(0.1)
        if self.server.metric("butterfly_requests_running") > 0:
            print("FAIL requests run on that nobody waits for")
            self.failures += 1
        self.check("clients that hang up")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one part by its name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, \
            Server("--log-format", "off", "--stream-buffer", "1", "--chat-template", write_template(folder)) as server:
        siege = Siege(server, options.quick, options.seed)
        for part in ("shapes", "bytes", "json", "large_bodies", "slow_senders", "slow_readers", "hang_ups", "idle"):
            if options.only in (None, part):
                getattr(siege, part)()
        code = server.terminate()
        if code != 0:
            print(f"FAIL the server ended with {code}")
            siege.failures += 1
    sys.exit(1 if siege.failures else 0)


if __name__ == "__main__":
    main()
