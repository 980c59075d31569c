#!/usr/bin/env python3
"""The library over workers, as a user's program has it: examples/cluster over two workers with credentials, of which one
is killed in the middle of the text. EXAMPLE_CLUSTER names the example's program."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "distributed"))
from program import DEMO, Worker, butterfly, environment  # pylint: disable=wrong-import-position
from security_test import Admission, Cluster  # pylint: disable=wrong-import-position

EXAMPLE = os.environ["EXAMPLE_CLUSTER"]
PROMPT = "ROMEO:\nO, she doth teach the torches"
TOKENS = "300"


class ClusterExample(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(os.path.join(cls.folder.name, "cluster"))
        with Admission(cls.cluster.coordinator) as admission:
            for name in ("worker-a", "worker-b"):
                enrolled = cls.cluster.enroll(name, admission.address, cls.cluster.token())
                assert enrolled.returncode == 0, enrolled.stderr
        alone = butterfly("generate", "-m", DEMO, "-p", PROMPT, "-n", TOKENS, "--ignore-end", "--threads", 1)
        assert alone.returncode == 0, alone.stderr
        cls.expected = alone.stdout

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def worker(self, name):
        return Worker("--credentials", self.cluster.member(name))

    def start(self, *addresses, credentials=None):
        return subprocess.Popen(
            [EXAMPLE, DEMO, PROMPT, TOKENS, credentials or self.cluster.coordinator, *addresses],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment())

    # Fails when the library's deployment does not go on after a death, or loses or repeats a piece of text.
    def test_a_killed_worker_is_reported_and_the_text_is_that_of_one_process(self):
        with self.worker("worker-a") as a, self.worker("worker-b") as b:
            running = self.start(a.address, b.address)
            first = running.stdout.read(4)
            b.process.kill()
            rest, errors = running.communicate(timeout=90)
            log = errors.decode()
            self.assertEqual(running.returncode, 0, log)
            self.assertEqual(first + rest, self.expected, log)
            self.assertIn(f"lost {b.address}", log)
            self.assertIn("epoch 1 over 2 workers", log)
            self.assertRegex(log, r"epoch [2-9] over 1 workers")
            self.assertIn(f"{a.address}: healthy", log)
            self.assertIn(f"{b.address}: lost", log)

    # Fails when the library speaks to workers in plain text although it was given credentials.
    def test_a_worker_without_credentials_is_not_used(self):
        with Worker() as plain:
            running = self.start(plain.address)
            text, errors = running.communicate(timeout=60)
            self.assertEqual(running.returncode, 2)
            self.assertEqual(text, b"")
            self.assertIn(b"speaks TLS only", errors)


if __name__ == "__main__":
    unittest.main()
