"""Worker processes against one process: the same bytes, whichever worker has which instructions, and clear ends."""

import json
import os
import signal
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from contextlib import ExitStack

from program import DEMO, PROGRAM, Worker, butterfly, environment, supported_isas

PROMPT = "ROMEO:\nO, she doth teach the torches"


def generate(*arguments, isa=None, tokens=40):
    return butterfly("generate", "-m", DEMO, "-p", PROMPT, "-n", tokens, *arguments, isa=isa)


class OneAnswer(unittest.TestCase):
    def setUp(self):
        self.expected = generate("--threads", 1, isa="reference")
        self.assertEqual(self.expected.returncode, 0, self.expected.stderr)

    def test_one_to_four_workers_of_mixed_instruction_sets_write_the_same_bytes(self):
        isas = supported_isas()
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(isa=isas[i % len(isas)])) for i in range(4)]
            for count in (1, 2, 3, 4):
                for split in ("uniform", "balanced"):
                    addresses = ",".join(w.address for w in workers[:count])
                    run = generate("--workers", addresses, "--split", split)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(run.stdout, self.expected.stdout, (count, split))
            for worker in workers:
                self.assertEqual(worker.terminate(), 0)

    def test_sampling_with_a_seed_does_not_see_the_split(self):
        options = ("--temp", 0.9, "--top-k", 50, "--top-p", 0.95, "--seed", 7, "--prefill-chunk", 5)
        one = generate(*options, isa="reference")
        other_seed = generate(*options[:-4], "--seed", 8)
        self.assertNotEqual(one.stdout, other_seed.stdout)
        with Worker() as a, Worker() as b:
            two = generate(*options, "--workers", f"{a.address},{b.address}")
        self.assertEqual(one.stdout, two.stdout)
        self.assertEqual(one.stdout, generate(*options, "--nodes", 3).stdout)

    def test_more_workers_than_layers_stand_by_and_it_is_said(self):
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker()) for _ in range(6)]
            run = generate("--workers", ",".join(w.address for w in workers))
        self.assertEqual(run.stdout, self.expected.stdout)
        self.assertIn(b"stands by", run.stderr)

    def test_a_worker_takes_weights_from_its_folder_by_content(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "deep"))
            shutil.copy(DEMO, os.path.join(folder, "deep", "another name.gguf"))
            with Worker("--model-dir", folder) as a, Worker() as b:
                run = generate("--workers", f"{a.address},{b.address}", "--json")
                self.assertEqual(run.returncode, 0, run.stderr)
                a.process.kill()
                log = a.process.stderr.read().decode()
        self.assertIn("another name.gguf", log)
        report = json.loads(run.stdout)
        self.assertEqual(report["text"].encode() + b"\n", self.expected.stdout)
        self.assertGreater(report["wire_bytes_per_token"], 0)
        self.assertEqual([n["first_layer"] for n in report["nodes"]][0], 0)


class Ends(unittest.TestCase):
    def one_sentence(self, run, *words):
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stdout, b"")
        lines = [line for line in run.stderr.decode().splitlines() if line.startswith("butterfly: ")]
        self.assertEqual(len(lines), 1, run.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_an_unreachable_worker_is_named(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % unused.getsockname()[1]
            self.one_sentence(generate("--workers", address), address)

    def test_a_port_in_use_is_said(self):
        with Worker() as worker:
            self.one_sentence(butterfly("worker", "--listen", worker.address), worker.address)

    def test_an_address_beyond_loopback_is_refused(self):
        self.one_sentence(butterfly("worker", "--listen", "0.0.0.0:0"), "loopback")

    def test_a_peer_that_is_no_worker_is_said_and_does_not_hang(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(8)
            begin = time.monotonic()
            run = generate("--workers", "127.0.0.1:%d" % server.getsockname()[1])
            self.one_sentence(run, "127.0.0.1")
            self.assertLess(time.monotonic() - begin, 30)

    def test_garbage_and_silence_on_the_port_delay_nobody(self):
        with Worker() as worker, ExitStack() as stack:
            host, port = worker.address.split(":")
            for _ in range(20):
                peer = stack.enter_context(socket.create_connection((host, int(port))))
                peer.send(os.urandom(200))
            for _ in range(5):
                stack.enter_context(socket.create_connection((host, int(port))))
            begin = time.monotonic()
            run = generate("--workers", worker.address)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertLess(time.monotonic() - begin, 10)

    def test_a_killed_worker_ends_the_run_with_its_name_and_the_others_serve_on(self):
        with Worker() as a, Worker() as b:
            running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "400", "--ignore-end",
                                        "--workers", f"{a.address},{b.address}"], env=environment("reference"),
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            running.stdout.read(1)
            b.process.send_signal(signal.SIGKILL)
            _, errors = running.communicate(timeout=15)
            self.assertEqual(running.returncode, 2, errors)
            self.assertIn(b.address, errors.decode())
            again = generate("--workers", a.address)
            self.assertEqual(again.returncode, 0, again.stderr)

    def test_a_second_coordinator_is_told_who_is_there(self):
        with Worker() as worker:
            running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "450", "--ignore-end",
                                        "--workers", worker.address], env=environment(),
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            running.stdout.read(1)
            os.kill(running.pid, signal.SIGSTOP)
            self.one_sentence(generate("--workers", worker.address), worker.address)
            os.kill(running.pid, signal.SIGCONT)
            running.communicate(timeout=60)
            self.assertEqual(generate("--workers", worker.address).returncode, 0)

    def test_interrupts_end_cleanly(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            with Worker() as worker:
                running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "450", "--ignore-end",
                                            "--workers", worker.address], env=environment("reference"),
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                running.stdout.read(1)
                running.send_signal(stop)
                _, errors = running.communicate(timeout=15)
                self.assertEqual(running.returncode, 130, errors)
                self.assertIn("cancelled", errors.decode())
                self.assertEqual(generate("--workers", worker.address).returncode, 0)
                worker.process.send_signal(stop)
                self.assertEqual(worker.process.wait(timeout=10), 0)


if __name__ == "__main__":
    unittest.main()
