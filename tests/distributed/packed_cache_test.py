"""Packed weights kept on disk: the next start maps them, and writes the same text from them."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from program import DEMO, PROGRAM, Worker, butterfly, environment

PROMPT = "ROMEO:\nO, she doth teach the torches"


def generate(*arguments, model=DEMO):
    return butterfly("generate", "-m", model, "-p", PROMPT, "-n", 40, *arguments)


def files_below(folder):
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)


class PackedCache(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = os.path.join(place.name, "packed")
        self.model = os.path.join(place.name, "model.gguf")
        self.expected = generate().stdout
        self.assertGreater(len(self.expected), 40)

    def test_the_next_start_writes_nothing_and_the_same_text(self):
        for nodes in (1, 2):
            self.assertEqual(generate("--packed-cache", self.folder, "--nodes", nodes).stdout, self.expected)
            files = {name: os.stat(name).st_mtime_ns for name in files_below(self.folder)}
            self.assertGreater(len(files), 2)
            self.assertEqual(generate("--packed-cache", self.folder, "--nodes", nodes).stdout, self.expected)
            self.assertEqual(files, {name: os.stat(name).st_mtime_ns for name in files_below(self.folder)})

    def test_another_model_under_the_same_name_is_another_model(self):
        texts = []
        for seed in (1, 2):
            made = butterfly("convert", "--random", "butterfly-demo", "--seed", seed, "--type", "q8_0", self.model)
            self.assertEqual(made.returncode, 0, made.stderr)
            texts.append(generate(model=self.model).stdout)
            for _ in range(2):
                run = generate("--packed-cache", self.folder, model=self.model)
                self.assertEqual(run.stdout, texts[-1], run.stderr)
        self.assertNotEqual(*texts)

    def test_damaged_files_are_told_of_and_mended(self):
        generate("--packed-cache", self.folder)
        damaged = files_below(self.folder)[0]
        with open(damaged, "r+b") as file:
            file.seek(os.path.getsize(damaged) // 2)
            file.write(b"damage")
        run = generate("--packed-cache", self.folder)
        self.assertEqual(run.stdout, self.expected)
        self.assertIn(os.path.basename(damaged).encode(), run.stderr)
        self.assertNotIn(b"packed anew", generate("--packed-cache", self.folder).stderr)

    def test_a_worker_that_starts_again_needs_no_weights_sent(self):
        for sent in (False, True):
            with Worker("--packed-cache", self.folder) as a, Worker("--packed-cache", self.folder) as b:
                for split in ("uniform", "tensor"):
                    run = generate("--workers", f"{a.address},{b.address}", "--split", split)
                    self.assertEqual(run.stdout, self.expected, run.stderr)
                    if sent:
                        self.assertIn(b" 0 B of weights sent", run.stderr)

    def test_a_start_that_is_killed_while_it_writes_spoils_nothing(self):
        for wait_s in (0.02, 0.05, 0.1, 0.2):
            running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-n", "40", "--packed-cache", self.folder],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
            time.sleep(wait_s)
            running.send_signal(signal.SIGKILL)
            running.wait()
            run = generate("--packed-cache", self.folder)
            self.assertEqual(run.stdout, self.expected)
            self.assertNotIn(b"packed anew", run.stderr)
            shutil.rmtree(self.folder)


if __name__ == "__main__":
    unittest.main()
