#!/usr/bin/env python3
"""Settings of `generate` and `worker` from files: the same bytes as the same flags, and sentences about mistakes."""

import json
import os
import subprocess
import tempfile
import unittest

from program import DEMO, PROGRAM, Worker, butterfly, environment

FLAGS = ("-m", DEMO, "-p", "ROMEO:\n\"What, ho!\"", "-n", "20", "--temp", "0.8", "--top-k", "40", "--top-p", "0.9",
         "--seed", "7", "--repeat-penalty", "1.1", "--stop", "zzz", "--stop", "q,q", "--echo", "--nodes", "2",
         "--threads", "1", "--kv-type", "f32", "--quiet")
FILE = f"""
model = "{DEMO}"
prompt = "ROMEO:\\n\\"What, ho!\\""
tokens = 20
temp = 0.8
top_k = 40
top_p = 0.9
seed = 7
repeat_penalty = 1.1
stop = ["zzz", "q,q"]
echo = true
nodes = 2
threads = 1
kv_type = "f32"
quiet = true
"""


class Settings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, text, name="settings.toml"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def refused(self, *words):
        run = butterfly(*words, text=True)
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        return run.stderr


class Generate(Settings):
    def test_a_file_gives_the_same_bytes_as_the_same_flags(self):
        by_flags = butterfly("generate", *FLAGS)
        self.assertEqual(by_flags.returncode, 0, by_flags.stderr)
        by_file = butterfly("generate", "-c", self.file(FILE))
        self.assertEqual((by_file.returncode, by_file.stdout), (0, by_flags.stdout), by_file.stderr)
        self.assertNotIn(b"tokens/s", by_file.stderr, "the file says quiet")
        self.assertTrue(by_file.stdout.startswith(b"ROMEO:\n\"What, ho!\""), by_file.stdout)

    def test_flags_win_over_the_file(self):
        path = self.file(FILE)
        run = json.loads(butterfly("generate", "-n", "5", "-c", path, "--json", "--seed", "8", "--echo", "false").stdout)
        self.assertEqual(run["generated_tokens"], 5)
        other = json.loads(butterfly("generate", *FLAGS, "--json", "-n", "5", "--seed", "8").stdout)
        self.assertEqual(run["tokens"], other["tokens"])

    def test_mistakes_in_the_file_are_named_by_file_line_and_key(self):
        path = self.file("model = \"x\"\nthredas = 2\n")
        self.assertIn(f"{path}: line 2: there is no key \"thredas\" (is \"threads\" meant?)",
                      self.refused("generate", "-c", path))
        for line, words in (("threads = \"two\"", "line 1: threads is 'two', expected a whole number"),
                            ("dead_after = 10", "line 1: dead_after is 10, expected a whole number from 50 to 600000"),
                            ("goal = \"speed\"", "expected one of latency, throughput, memory"),
                            ("stop = \"x\"", "expected a list of texts"),
                            ("tokens = ", "line 1: ")):
            self.assertIn(words, self.refused("generate", "-m", DEMO, "-c", self.file(line + "\n")))
        self.assertIn("there is no such file", self.refused("generate", "-c", os.path.join(self.folder, "none.toml")))

    def test_mistakes_in_flags_are_named(self):
        for words, said in ((("--dead-after", "10"), "--dead-after is \"10\", expected a whole number from 50 to 600000"),
                            (("--temp", "warm"), "--temp is \"warm\", expected a number"),
                            (("--temp", "-1"), "temperature is -1, it must be at least 0"),
                            (("--seed", "-1"), "--seed is \"-1\", expected a whole number"),
                            (("--nodes", "2", "--workers", "a:1,b:2"), "nodes is 2 and workers names 2"),
                            (("--credentials", "x", "--insecure"), "credentials is x and insecure is true")):
            self.assertIn(said, self.refused("generate", "-m", DEMO, *words))
        self.assertIn("model is not set: --model FILE", self.refused("generate", "-p", "x"))

    def test_a_seed_has_sixty_four_bits(self):
        sampled = ("generate", "-m", DEMO, "-p", "A", "-n", "8", "--temp", "1", "--seed")
        largest = butterfly(*sampled, str(2**64 - 1))
        self.assertEqual(largest.returncode, 0, largest.stderr)
        self.assertEqual(largest.stdout, butterfly(*sampled, hex(2**64 - 1)).stdout)
        self.assertNotEqual(largest.stdout, butterfly(*sampled, "0").stdout)

    def test_a_stop_may_hold_a_comma(self):
        said = [json.loads(butterfly("generate", "-m", DEMO, "-p", "ROMEO:", "-n", "20", "--json", *stops).stdout)
                for stops in (("--stop", "zzz,e"), ("--stop", "zzz", "--stop", "e"))]
        self.assertEqual([one["finish_reason"] for one in said], ["length", "stop"])
        self.assertTrue(said[0]["text"].startswith(said[1]["text"] + "e"), said)

    def test_what_is_on_by_default_is_switched_off_by_its_opposite(self):
        # bench is quiet unless it is told otherwise.
        words = ("bench", "model", "-m", DEMO, "--nodes", "2", "--threads", "1", "--prefill", "4", "--decode", "1",
                 "--rounds", "1")
        self.assertNotIn(b"split uniform", butterfly(*words).stderr)
        for loud in (("--no-quiet",), ("--quiet", "false")):
            self.assertIn(b"split uniform", butterfly(*words, *loud).stderr)

    def test_one_file_serves_every_command_that_runs_a_model(self):
        path, text = self.file(FILE), self.file("To be or not to be, that is the question.", "text.txt")
        run = butterfly("perplexity", "-c", path, "-f", text, "--window", "8")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout, butterfly("perplexity", "-m", DEMO, "--kv-type", "f32", "-f", text,
                                               "--window", "8").stdout)
        bench = butterfly("bench", "model", "-c", path, "--prefill", "8", "--decode", "2", "--rounds", "1", "--json")
        self.assertEqual(json.loads(bench.stdout)["results"][0]["threads"], 1, bench.stderr)

    def test_help_names_the_file_and_every_key(self):
        for command in ("generate", "worker"):
            shown = butterfly(command, "--help", text=True).stdout
            self.assertIn("-c,--config", shown)
            self.assertIn("docs/configuration.md", shown)
        self.assertIn("--dead-after,--dead_after", butterfly("generate", "--help", text=True).stdout)


class WorkerFile(Settings):
    def start(self, *words):
        return subprocess.Popen([PROGRAM, "worker", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                env=environment(), text=True)

    def test_a_worker_takes_its_settings_from_a_file_and_flags_win(self):
        path = self.file("listen = \"127.0.0.1:0\"\nthreads = 1\nmemory = \"3G\"\ntrain = false\nshared_memory = true\n")
        with Worker("-c", path, "--memory", "2G") as worker:
            run = butterfly("generate", *FLAGS, "--nodes", "1", "--workers", worker.address)
            self.assertEqual(run.stdout, butterfly("generate", *FLAGS).stdout, run.stderr)
            shown = json.loads(butterfly("cluster", "status", worker.address, "--json").stdout)
            self.assertIn(str(2 << 30), json.dumps(shown))

    def test_mistakes_end_the_worker_with_a_sentence(self):
        path = self.file("listne = \"127.0.0.1:0\"\n")
        self.assertIn(f"{path}: line 1: there is no key \"listne\" (is \"listen\" meant?)",
                      self.refused("worker", "-c", path))
        self.assertIn("line 1: emulate is 2, expected a number from 0.01 to 1",
                      self.refused("worker", "-c", self.file("emulate = 2\n")))
        self.assertIn("--memory is \"much\", expected a size", self.refused("worker", "--memory", "much"))
        self.assertIn("--emulate 0.5 needs --threads 1, not 2", self.refused("worker", "--emulate", "0.5", "-t", "2"))

    def test_what_is_on_is_switched_off_by_a_flag_with_no(self):
        both = butterfly("worker", "--no-train", "--train", "true", text=True)
        self.assertEqual(both.returncode, 2)
        self.assertIn("--train excludes --no-train", both.stderr)
        # What follows them is wrong, they are not.
        self.assertIn("--memory is", self.refused("worker", "--no-train", "--no-shared-memory", "--memory", "much"))


if __name__ == "__main__":
    unittest.main()
