#!/usr/bin/env python3
"""butterfly train and the corpus side of butterfly tokenize as a user meets them: from text to a model that learned, the
log, the result, statuses, and bad input."""

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM, ROOT, TIMEOUT_S, butterfly, environment

TEXT = os.path.join(ROOT, "tests/golden/bpe_text.txt")
SMALL = ["--model", "tinytransformer-tiny", "--seq", "16", "--batch", "4", "--threads", "1"]


def train(*arguments):
    return butterfly("train", *arguments, text=True)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def place(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.place(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.place(name)

    def tokenizer(self):
        run = butterfly("tokenize", "--train", TEXT, "--vocab", "400", "--out", self.place("tokenizer.json"), text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return self.place("tokenizer.json")


class FromTextToText(Folder):
    def test_text_becomes_a_tokenizer_tokens_and_a_model_that_learned(self):
        tokenizer, tokens = self.tokenizer(), self.place("corpus.tokens")
        packed = butterfly("tokenize", "-m", tokenizer, "--pack", TEXT, TEXT, "--out", tokens, text=True)
        self.assertEqual(packed.returncode, 0, packed.stderr)
        run = train(*SMALL, "--data", tokens, "--tokenizer", tokenizer, "--steps", "60", "--lr", "3e-3",
                    "--schedule", "constant", "--json", "--out", self.place("trained.gguf"))
        self.assertEqual(run.returncode, 0, run.stderr)
        result = json.loads(run.stdout)
        self.assertTrue(result["valid"], result)
        self.assertEqual(result["num_steps"], 60)
        self.assertLess(result["final_loss"], 5.5)
        text = butterfly("generate", "-m", self.place("trained.gguf"), "-p", "The", "-n", "8", "--temp", "0")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertNotEqual(text.stdout, b"")

    def test_text_and_its_packed_tokens_give_the_same_weights(self):
        tokenizer, tokens = self.tokenizer(), self.place("corpus.tokens")
        butterfly("tokenize", "-m", tokenizer, "--pack", TEXT, "--out", tokens)
        hashes = [json.loads(train(*SMALL, "--data", data, "--tokenizer", tokenizer, "--steps", "3", "--json").stdout)
                  ["weights_hash"] for data in (TEXT, tokens)]
        self.assertEqual(*hashes)

    def test_the_log_has_a_line_for_every_step_and_the_result(self):
        log, events = self.place("log.jsonl"), self.place("events")
        run = train(*SMALL, "--data", "synthetic:markov", "--steps", "5", "--log-file", log, "--events-dir", events,
                    "--log", "silent", "--json")
        self.assertEqual(run.stderr, "")
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["step"] for line in lines if line["event"] == "step"], list(range(5)))
        self.assertEqual(lines[0]["config"]["steps"], 5)
        self.assertEqual(lines[-1]["event"], "result")
        self.assertEqual(lines[-1]["weights_hash"], json.loads(run.stdout)["weights_hash"])
        self.assertEqual(len(os.listdir(events)), 1)

    def test_flags_win_over_the_file(self):
        config = self.write("run.toml", 'model = "tinytransformer-tiny"\ndata.files = ["synthetic:markov"]\nseq = 16\n'
                                        "steps = 7\nthreads = 1\n")
        run = train("-c", config, "--steps", "2", "--json")
        self.assertEqual(json.loads(run.stdout)["num_steps"], 2, run.stderr)


class Parts(Folder):
    RUN = ["--model", "tinytransformer-tiny", "--seq", "16", "--batch", "6", "--micro-batch", "1", "--threads", "1",
           "--data", "synthetic:markov", "--steps", "4", "--deterministic", "true", "--json"]

    def result(self, *arguments):
        run = train(*self.RUN, *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout), run.stderr

    def weights(self, *arguments):
        result, said = self.result(*arguments)
        return result["weights_hash"], said

    def test_each_strategy_by_each_name_ends_with_the_same_weights_and_model(self):
        one, _ = self.weights("--out", self.place("one.gguf"))
        for number, name in enumerate(["zero1", "SHARD_GRAD_OP", "FULL_SHARD", "hybrid"]):
            out = self.place(f"{number}.gguf")
            self.assertEqual(self.weights("--parallel", name, "--ranks", "3", "--engine", "tcp", "--out", out)[0], one, name)
            with open(out, "rb") as divided, open(self.place("one.gguf"), "rb") as whole:
                self.assertTrue(divided.read() == whole.read(), name)

    def test_auto_says_what_it_takes_and_why(self):
        one, _ = self.weights()
        same, said = self.weights("--parallel", "auto", "--ranks", "2")
        self.assertEqual(same, one)
        self.assertRegex(said, r"(?m)^strategy +(ddp|zero1|shard_grad_op|full_shard): it fits")

    def test_the_forecast_is_of_ranks_as_fast_as_they_are_said_to_be(self):
        # Rank 0 is as fast as it is: beside a faster one it has less to do, beside a slower one more.
        faster, even, slower = (self.result("--ranks", "2", "--parallel.speeds", speeds)[0]["predicted_step_s"]
                                for speeds in ("1,5", "1,1", "1,0.2"))
        self.assertLess(faster, 0.75 * even)
        self.assertGreater(slower, 1.25 * even)

    def test_what_cannot_be_is_one_sentence(self):
        for flags, part in ((["--parallel", "hybrid", "--ranks", "3", "--shard-group", "2"], "into groups"),
                            (["--parallel", "zero4"], "zero4"),
                            (["--parallel", "zero1", "--ranks", "2", "--deterministic", "false", "--compression", "int8"],
                             "packs the gradients of ddp")):
            run = train(*self.RUN, *flags)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(part, run.stderr)
            self.assertEqual(run.stdout, "")


class Statuses(Folder):
    def test_a_run_that_cannot_have_learned_is_invalid_with_status_3(self):
        run = train(*SMALL, "--data", "synthetic:markov", "--steps", "4", "--lr", "1e-12", "--json")
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertFalse(json.loads(run.stdout)["valid"])
        self.assertIn("INVALID: ", run.stderr)

    def test_an_interrupt_ends_the_run_at_a_step_with_status_130(self):
        process = subprocess.Popen([PROGRAM, "train", *SMALL, "--data", "synthetic:markov", "--steps", "1000000",
                                    "--log-file", self.place("log.jsonl"), "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.kill)
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end and '"step"' not in self.logged():
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertGreater(json.loads(stdout)["steps_done"], 0)

    def logged(self):
        try:
            with open(self.place("log.jsonl"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def test_find_batch_names_the_largest_micro_batch_that_fits(self):
        # Less than this machine has, which other tests need too: the system refuses the rest.
        limit = 1_000_000_000
        run = butterfly("train", *SMALL, "--data", "synthetic:markov", "--find-batch", "--json", text=True,
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads(run.stdout)
        *fitting, last = found["trials"]
        self.assertEqual([trial["micro_batch"] for trial in fitting], [2**i for i in range(len(fitting))])
        self.assertTrue(all(trial["fits"] for trial in fitting))
        self.assertFalse(last["fits"])
        self.assertEqual(found["largest"], fitting[-1]["micro_batch"])
        self.assertGreaterEqual(found["largest"], 4)


class Memory(Folder):
    """--memory chooses what fits, and says what it tried."""

    def fitted(self, memory, *more):
        return butterfly("train", *SMALL, "--data", "synthetic:markov", "--batch", "8", "--steps", "2", "--memory", memory,
                         "--json", *more, text=True)

    def test_the_fastest_that_fits_is_taken_and_those_before_it_are_named(self):
        roomy = self.fitted("1TiB", "--ranks", "2")
        self.assertEqual(roomy.returncode, 0, roomy.stderr)
        tried = [line for line in roomy.stderr.splitlines() if " a step  " in line]
        self.assertEqual(len(tried), 1)
        # Which is the fastest is measured, and a busy machine may prefer a pipeline, whose micro-batches are small.
        self.assertRegex(tried[0], r"( pipeline, micro-batch \d|, micro-batch 4), recompute none .* fits\Z")
        needed = json.loads(roomy.stdout)["predicted_memory_bytes"]
        tight = self.fitted(str(needed - 1), "--ranks", "2")
        self.assertEqual(tight.returncode, 0, tight.stderr)
        self.assertLess(json.loads(tight.stdout)["predicted_memory_bytes"], needed)
        tried = [line for line in tight.stderr.splitlines() if " a step  " in line]
        self.assertTrue(all(line.endswith("does not fit") for line in tried[:-1]))
        self.assertRegex(tried[-1], r"  fits\Z")

    def test_what_is_given_stays(self):
        run = self.fitted("1TiB", "--ranks", "2", "--parallel", "zero2", "--micro-batch", "1", "--recompute", "block")
        self.assertEqual(run.returncode, 0, run.stderr)
        tried = [line for line in run.stderr.splitlines() if " a step  " in line]
        self.assertEqual(len(tried), 1)
        self.assertIn("zero2, micro-batch 1, recompute block", tried[0])
        # ddp is the default, and here the user's word.
        run = self.fitted("1TiB", "--ranks", "2", "--parallel", "ddp", "--recompute", "none", "--micro-batch", "2")
        self.assertIn("ddp, micro-batch 2, recompute none", run.stderr)

    def test_where_nothing_fits_one_sentence_names_the_least(self):
        run = self.fitted("1MiB", "--ranks", "2", "--log", "silent")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertRegex(run.stderr, r"\Abutterfly: nothing fits into 1.0 MiB for each rank: the least is [^\n]+\n\Z")


class BadInput(Folder):
    def refusal(self, *arguments):
        run = train(*arguments)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stdout, "")
        self.assertRegex(run.stderr, r"\Abutterfly: [^\n]+\n\Z")
        return run.stderr

    def test_each_is_one_sentence_with_both_values(self):
        tokenizer = self.tokenizer()
        data = ["--data", "synthetic:markov"]
        self.assertIn("model is not set", self.refusal(*data))
        self.assertIn('memory is "8 chairs"', self.refusal(*SMALL, *data, "--memory", "8 chairs"))
        self.assertIn("there are", self.refusal("--model", "gpt5", *data))
        self.assertIn("data.files is empty", self.refusal(*SMALL))
        self.assertIn("--steps is \"many\", expected a whole number", self.refusal(*SMALL, *data, "--steps", "many"))
        self.assertIn("seq is 4096, the model's context has 1024", self.refusal("--model", "gpt2-124m", *data, "--seq", "4096"))
        self.assertIn("global_batch is 4 and micro_batch 3", self.refusal(*SMALL, *data, "--micro-batch", "3"))
        self.assertIn("global_batch is 4 and parallel.ranks 5", self.refusal(*SMALL, *data, "--ranks", "5"))
        self.assertIn("absent.txt", self.refusal(*SMALL, "--data", self.place("absent.txt"), "--tokenizer", tokenizer))
        tiny = self.write("tiny.txt", "To be")
        self.assertIn("tokens to train on, a step needs 81",
                      self.refusal(*SMALL, "--data", tiny, "--tokenizer", tokenizer))
        empty = self.write("empty.txt", "")
        self.assertIn("is empty", self.refusal(*SMALL, "--data", empty, "--tokenizer", tokenizer))
        self.assertIn("there is no tokenizer", self.refusal(*SMALL, "--data", TEXT))
        broken = self.write("broken.tokens", "BFTOKENS")
        self.assertIn("has 8 bytes, the header of a token file has 64", self.refusal(*SMALL, "--data", broken))
        wrong = self.write("run.toml", "steps = 5\nstps = 6\n")
        self.assertIn("run.toml: line 2: there is no key \"stps\"", self.refusal("-c", wrong))
        self.assertIn("run.toml: line 1: steps is", self.refusal("-c", self.write("run.toml", 'steps = "five"\n')))
        self.assertIn("absent.toml", self.refusal("-c", self.place("absent.toml")))
        packed = self.place("corpus.tokens")
        butterfly("tokenize", "-m", tokenizer, "--pack", TEXT, "--out", packed)
        self.assertRegex(self.refusal("--model", os.path.join(ROOT, "models/demo.gguf"), "--data", packed), "2048.*400|400.*2048")

    def test_tokenize_names_what_it_cannot_use(self):
        def refusal(*arguments):
            run = butterfly("tokenize", *arguments, text=True)
            self.assertEqual(run.returncode, 2, run.stderr)
            return run.stderr
        self.assertIn("absent.txt", refusal("--train", "absent.txt", "--out", self.place("t.json")))
        self.assertIn("--out", refusal("--train", TEXT))
        self.assertIn("257", refusal("--train", TEXT, "--vocab", "100", "--out", self.place("t.json")))
        self.assertIn("-m", refusal("--pack", TEXT, "--out", self.place("t.tokens")))
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    unittest.main()
