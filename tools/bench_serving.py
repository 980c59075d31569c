#!/usr/bin/env python3
"""What many readers of one server get; prints a line for each question and exits with 1 where an answer is not held.

    tools/bench_serving.py prefix [-m MODEL]                a prompt of 1,000 tokens again: its first token comes in under
                                                            10 % of the first's time, with the same text
    tools/bench_serving.py long [-m MODEL]                  a prompt of 4,000 tokens beside 16 short answers: their time per
                                                            token (p95) grows by at most 1.5x, and its first token comes
                                                            within 3x its time alone
    tools/bench_serving.py peer --llama-server PROGRAM      8 readers, beside llama.cpp's server, in turns: at least 1.3x
    tools/bench_serving.py split                            two 1-thread workers of a server for many texts beside two
                                                            processes of 1 thread that know nothing of each other: decode
                                                            and prefill of 8 texts, at least 90 % together
    tools/bench_serving.py schema                           answers of a JSON schema beside free ones: at most 5 % slower

Models are made by `butterfly convert --random` where none is given. Options: --rounds, --threads, --workers N.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/faults"), str(ROOT / "tests/distributed")]

from harness import PROGRAM, Worker, commit, free_ports, machine_line, median  # noqa: E402

def tokens_of(count, seed):
    """Token ids, so that a prompt has as many with every vocabulary."""
    return [300 + (seed * 7919 + i * (31 + seed % 97) + i // 11) % 1500 for i in range(count)]


def p95(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


class Served:
    """A server of a model, by whichever program; killed at the end of a `with`."""

    def __init__(self, command, address, probe="/health"):
        self.address = address
        self.log = tempfile.NamedTemporaryFile(suffix=".log")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 300
        while True:
            try:
                connection = http.client.HTTPConnection(address, timeout=5)
                connection.request("GET", probe)
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"{' '.join(command)}: {pathlib.Path(self.log.name).read_text(encoding='utf-8')}")
            time.sleep(0.2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def butterfly(options, *more, threads=None):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return Served([PROGRAM, "serve", "-m", options.model, "-t", str(threads or options.threads), "--listen", address,
                   "--journal", "off", "-q", *more], address, "/health/ready")


class Answer:
    """A text that is read as it is written."""

    def __init__(self, address, prompt, tokens, **more):
        self.began, self.times, self.text, self.usage = time.monotonic(), [], "", {}
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, "cache_prompt": True, **more}
        connection = http.client.HTTPConnection(address, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {answer.read().decode()}")
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            self.usage = event.get("usage") or self.usage
            if event.get("choices"):
                self.times.append(time.monotonic())
                self.text += event["choices"][0]["text"]
        connection.close()
        self.ended = time.monotonic()

    def first_s(self):
        return self.times[0] - self.began

    def per_token_s(self):
        return (self.times[-1] - self.times[0]) / max(self.usage.get("completion_tokens", len(self.times)) - 1, 1)


def side_by_side(asks):
    """Results of calls, each by a thread of its own."""
    results = [None] * len(asks)

    def call(index):
        results[index] = asks[index]()

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(900)
    return results


def held(what, value, limit, least=False):
    good = value >= limit if least else value <= limit
    print(f"{'ok' if good else 'BROKEN'}: {what}: {value:.3f}, {'at least' if least else 'at most'} {limit:g}", flush=True)
    return 0 if good else 1


def prefix(options):
    with butterfly(options) as server:
        Answer(server.address, tokens_of(50, 1), 8)
        ratios, same = [], True
        for round_ in range(options.rounds):
            prompt = tokens_of(1000, 10 + round_)
            first, again = (Answer(server.address, prompt, 16) for _ in range(2))
            print(f"{first.usage['prompt_tokens']} tokens: first token {first.first_s():.3f} s, again {again.first_s():.3f} s", flush=True)
            ratios.append(again.first_s() / first.first_s())
            same = same and first.text == again.text
    return held("first token again", median(ratios), 0.1) + (0 if same else held("same text", 0, 1, least=True))


def long_beside_readers(address, prompt, short):
    """The answer to `prompt` while 16 readers ask for one short answer after the other, and those that overlap it."""
    over, during = threading.Event(), []

    def read_on(index):
        while not over.is_set():
            during.append(short(index)())

    readers = [threading.Thread(target=read_on, args=(i,), daemon=True) for i in range(16)]
    for reader in readers:
        reader.start()
    time.sleep(2)
    beside = Answer(address, prompt, 4)
    over.set()
    for reader in readers:
        reader.join(300)
    return beside, [a for a in during if a.times[-1] > beside.began and a.times[0] < beside.times[0]]


def long(options):
    with butterfly(options, "--parallel", "32", "--no-prefix-cache") as server:
        Answer(server.address, tokens_of(50, 1), 8)
        prompt = tokens_of(options.prompt_tokens, 3)
        alone = Answer(server.address, prompt, 4)
        print(f"{alone.usage['prompt_tokens']} tokens alone: first token {alone.first_s():.2f} s", flush=True)
        short = lambda i: lambda: Answer(server.address, tokens_of(20, i), options.short_tokens)  # noqa: E731
        before = side_by_side([short(i) for i in range(16)])
        if options.endless:
            beside, during = long_beside_readers(server.address, prompt, short)
        else:
            beside, *during = side_by_side([lambda: Answer(server.address, prompt, 4)] + [short(i) for i in range(16, 32)])
    quiet, busy = p95([a.per_token_s() for a in before]), p95([a.per_token_s() for a in during])
    print(f"16 short answers: {1e3 * quiet:.1f} ms per token (p95), {1e3 * busy:.1f} ms beside it ({len(during)} answers); "
          f"its first token {beside.first_s():.2f} s", flush=True)
    return held("growth of the time per token, p95", busy / quiet, 1.5) + held(
        "its first token against alone", beside.first_s() / alone.first_s(), 3)


def throughput(address, tokens=64, prompt_tokens=100, seed=0):
    began = time.monotonic()
    answers = side_by_side([lambda i=i: Answer(address, tokens_of(prompt_tokens, seed * 8 + i), tokens) for i in range(8)])
    return sum(a.usage.get("completion_tokens", len(a.times)) for a in answers) / (time.monotonic() - began)


def peer(options):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    host, port = address.split(":")
    command = [options.llama_server, "-m", options.model, "--host", host, "--port", port, "-np", "8", "-t", str(options.threads),
               "-c", "8192", "--no-webui"]
    with butterfly(options, "--parallel", "8") as ours, Served(command, address) as theirs:
        rates = {"butterfly": [], "llama-server": []}
        for round_ in range(options.rounds + 1):
            for name, server in (("butterfly", ours), ("llama-server", theirs)):
                rate = throughput(server.address, seed=round_)
                if round_ > 0:
                    rates[name].append(rate)
    for name, all_rates in rates.items():
        print(f"{name}: {median(all_rates):.1f} ({min(all_rates):.1f} to {max(all_rates):.1f}) generated tokens/s of 8 readers")
    return held("butterfly against llama-server", median(rates["butterfly"]) / median(rates["llama-server"]), 1.3, least=True)


def split(options):
    """Eight texts: prompts of 250 tokens and an answer of one, and prompts of one token and answers of 48."""
    shapes = {"prefill": (1, 250), "decode": (48, 1)}
    kinds = options.split.split(",")
    rates = {(where, shape): [] for where in ("alone", *kinds) for shape in shapes}
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(butterfly(options, threads=1)) for _ in range(2)]
        both = {}
        for kind in kinds:
            names = ",".join([stack.enter_context(Worker()).address for _ in range(2)])
            name, _, goal = kind.partition(":")
            more = ["--replicas", "2"] if name == "replicas" else ["--split", name]
            more += ["--goal", goal] if goal else []
            both[kind] = stack.enter_context(butterfly(options, "--workers", names, *more, threads=1))
        for round_ in range(options.rounds + 1):
            for shape, (tokens, count) in shapes.items():
                def of(address, first, texts, tokens=tokens, count=count):
                    began = time.monotonic()
                    side_by_side([lambda i=i: Answer(address, tokens_of(count, 1000 * round_ + first + i), tokens)
                                  for i in range(texts)])
                    return texts * (tokens if tokens > 1 else count) / (time.monotonic() - began)
                measured = {"alone": sum(side_by_side([lambda i=i: of(ones[i].address, 40 * i, 4) for i in range(2)]))}
                for kind in kinds:
                    measured[kind] = of(both[kind].address, 80, 8)
                if round_ > 0:
                    for where, rate in measured.items():
                        rates[where, shape].append(rate)
    broken = 0
    for kind in kinds:
        for shape in shapes:
            alone, together = rates["alone", shape], rates[kind, shape]
            ratios = sorted(b / a for a, b in zip(alone, together))
            print(f"{shape}: two processes {median(alone):.1f}, two workers ({kind}) {median(together):.1f} tokens/s, "
                  f"rounds {ratios[0]:.2f} to {ratios[-1]:.2f}")
            broken += held(f"{shape} of two workers against two processes", median(ratios), 0.9, least=True)
    return broken


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["lines"],
          "properties": {"lines": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 180}}}}


def schema(options):
    with butterfly(options, "--no-prefix-cache") as server:
        ratios = []
        for round_ in range(options.rounds + 1):
            free = Answer(server.address, tokens_of(20, round_), 200)
            form = Answer(server.address, tokens_of(20, round_), 200, ignore_eos=False,
                          response_format={"type": "json_schema", "json_schema": {"name": "lines", "schema": SCHEMA}})
            if round_ > 0:
                ratios.append(form.per_token_s() / free.per_token_s())
                print(f"free {1e3 * free.per_token_s():.2f} ms per token, of the schema {1e3 * form.per_token_s():.2f} ms "
                      f"({form.usage['completion_tokens']} tokens)", flush=True)
    return held("time per token with a schema", median(ratios), 1.05)


QUESTIONS = {"prefix": prefix, "long": long, "peer": peer, "split": split, "schema": schema}
LONG_SHAPE = "llama-3.2-1b"  # of a context that is long enough


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("-m", "--model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-server")
    parser.add_argument("--split", default="auto:throughput", help="SPLIT or SPLIT:GOAL of the workers, `replicas`, or several, with commas")
    parser.add_argument("--prompt-tokens", type=int, default=4000, help="of `long`")
    parser.add_argument("--short-tokens", type=int, default=64)
    parser.add_argument("--endless", action="store_true", help="in `long`, each reader asks again until the prompt is through")
    options = parser.parse_args()
    if options.question == "peer" and not options.llama_server:
        parser.error("--llama-server says where llama.cpp's server is")
    with tempfile.TemporaryDirectory() as folder:
        if not options.model:
            shape = LONG_SHAPE if options.question == "long" else "llama-1.1b"
            options.model = os.path.join(folder, f"{shape}.gguf")
            subprocess.run([PROGRAM, "convert", "--random", shape, "--type", "q4_0", options.model], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(f"{machine_line()}, commit {commit()}, {os.path.basename(options.model)}, {options.threads} threads", flush=True)
        return 1 if QUESTIONS[options.question](options) else 0


if __name__ == "__main__":
    sys.exit(main())
