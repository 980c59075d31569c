"""Encoders, and encoders with decoders, as a user meets them: embed, fill and generate give the same bytes over nodes,
splits and workers, also when a worker dies. The models are random and made here."""

import json
import os
import random
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from contextlib import ExitStack

from program import DEMO, PROGRAM, ROOT, Worker, butterfly, environment

DIM, HEADS, LAYERS, FF = 48, 4, 6, 96
VOCAB = 300
SPECIAL = {"[CLS]": 280, "[SEP]": 281, "[MASK]": 282}


def save_safetensors(path, tensors):
    """tensors: name to (shape, floats)."""
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Weights:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = {}

    def matrix(self, name, rows, cols, bias=True):
        scale = 1.5 / cols**0.5
        values = [self.random.uniform(-scale, scale) for _ in range(rows * cols)]
        self.tensors[name + ".weight"] = ([rows, cols], values)
        if bias:
            self.tensors[name + ".bias"] = ([rows], [self.random.uniform(-0.1, 0.1) for _ in range(rows)])

    def norm(self, name, bias=True):
        self.tensors[name + ".weight"] = ([DIM], [self.random.uniform(0.8, 1.2) for _ in range(DIM)])
        if bias:
            self.tensors[name + ".bias"] = ([DIM], [self.random.uniform(-0.1, 0.1) for _ in range(DIM)])


def bert(folder):
    weights = Weights(1)
    for table, rows in (("word", VOCAB), ("position", 128), ("token_type", 2)):
        weights.matrix(f"bert.embeddings.{table}_embeddings", rows, DIM, bias=False)
    weights.norm("bert.embeddings.LayerNorm")
    for layer in range(LAYERS):
        block = f"bert.encoder.layer.{layer}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            weights.matrix(block + "attention." + part, DIM, DIM)
        weights.norm(block + "attention.output.LayerNorm")
        weights.matrix(block + "intermediate.dense", FF, DIM)
        weights.matrix(block + "output.dense", DIM, FF)
        weights.norm(block + "output.LayerNorm")
    weights.matrix("cls.predictions.transform.dense", DIM, DIM)
    weights.norm("cls.predictions.transform.LayerNorm")
    weights.tensors["cls.predictions.bias"] = ([VOCAB], [0.0] * VOCAB)
    config = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FF,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "eos_token_id": SPECIAL["[SEP]"],
    }
    save(folder, config, weights)


def t5(folder):
    weights = Weights(2)
    weights.matrix("shared", VOCAB, DIM, bias=False)
    weights.matrix("lm_head", VOCAB, DIM, bias=False)
    for side, mlp in (("encoder", 1), ("decoder", 2)):
        for layer in range(LAYERS // 2):
            block = f"{side}.block.{layer}.layer."
            for sublayer, attention in ((0, "SelfAttention"), (1, "EncDecAttention"))[:mlp]:
                weights.norm(f"{block}{sublayer}.layer_norm", bias=False)
                for part in "qkvo":
                    weights.matrix(f"{block}{sublayer}.{attention}.{part}", DIM, DIM, bias=False)
            if layer == 0:
                weights.matrix(f"{block}0.SelfAttention.relative_attention_bias", 8, HEADS, bias=False)
            weights.norm(f"{block}{mlp}.layer_norm", bias=False)
            weights.matrix(f"{block}{mlp}.DenseReluDense.wi_0", FF, DIM, bias=False)
            weights.matrix(f"{block}{mlp}.DenseReluDense.wi_1", FF, DIM, bias=False)
            weights.matrix(f"{block}{mlp}.DenseReluDense.wo", DIM, FF, bias=False)
        weights.norm(f"{side}.final_layer_norm", bias=False)
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": DIM,
        "d_kv": DIM // HEADS,
        "d_ff": FF,
        "num_layers": LAYERS // 2,
        "num_decoder_layers": LAYERS // 2,
        "num_heads": HEADS,
        "vocab_size": VOCAB,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
        "decoder_start_token_id": 0,
        "eos_token_id": SPECIAL["[SEP]"],
    }
    save(folder, config, weights)


def save(folder, config, weights):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    save_safetensors(os.path.join(folder, "model.safetensors"), weights.tensors)
    learned = os.path.join(folder, "tokenizer.json")
    run = butterfly("tokenize", "--train", os.path.join(ROOT, "README.md"), "--vocab", 280, "--out", learned)
    assert run.returncode == 0, run.stderr
    with open(learned, encoding="utf-8") as file:
        tokenizer = json.load(file)
    for content, number in SPECIAL.items():
        tokenizer["added_tokens"].append({"id": number, "content": content, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": True})
    with open(learned, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)


def texts(count):
    source = random.Random(3)
    words = "a token is read by every other and each of them is given what it asked for".split()
    return "".join(" ".join(source.choices(words, k=source.randint(1, 20))) + "\n" for _ in range(count)).encode()


class Encoders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.bert = os.path.join(cls.folder.name, "bert")
        cls.t5 = os.path.join(cls.folder.name, "t5")
        bert(cls.bert)
        t5(cls.t5)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_with(self, command, *arguments, given=None, isa=None):
        run = butterfly(*command, *arguments, isa=isa, input=given)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def everywhere(self, command, given=None):
        """One process of `reference` against nodes, splits, threads and workers."""
        expected = self.run_with(command, "--threads", 1, given=given, isa="reference")
        for arguments in (("--threads", 2), ("--nodes", 4), ("--nodes", 3, "--split", "tensor")):
            self.assertEqual(self.run_with(command, *arguments, given=given), expected, arguments)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(isa=isa)) for isa in ("reference", None, None)]
            addresses = ",".join(worker.address for worker in workers)
            for split in ("uniform", "tensor", "hybrid"):
                self.assertEqual(self.run_with(command, "--workers", addresses, "--split", split, given=given), expected,
                                 split)
        return expected

    def strike(self, command, given=None, split="uniform"):
        """The same bytes though a worker is killed after it has computed some steps."""
        expected = self.run_with(command, given=given)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker("--emulate", "0.05")) for _ in range(3)]
            running = subprocess.Popen(
                [PROGRAM, *map(str, command), "--workers", ",".join(w.address for w in workers), "--split", split],
                env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.callback(running.kill)
            if given:
                running.stdin.write(given)
            running.stdin.close()
            running.stdin = None
            victim = workers[1]
            deadline = time.monotonic() + 60
            while self.steps(victim) < 3:
                self.assertLess(time.monotonic(), deadline, "the worker never computed")
                self.assertIsNone(running.poll(), "the run ended before it was struck")
            victim.process.send_signal(signal.SIGKILL)
            output, errors = running.communicate(timeout=100)
            self.assertEqual(running.returncode, 0, errors)
            self.assertEqual(output, expected, errors)
            self.assertIn(b"epoch 2: 2 workers", errors)

    def steps(self, worker):
        shown = butterfly("cluster", "status", worker.address, "--json")
        return json.loads(shown.stdout)[0].get("steps", 0) if shown.returncode == 0 else 0

    def test_vectors_are_the_same_wherever_layers_and_slices_are(self):
        lines = self.everywhere(["embed", "-m", self.bert], given=texts(30)).decode().splitlines()
        self.assertEqual(len(lines), 30)
        for line in lines:
            vector = [float(number) for number in line.split()]
            self.assertEqual(len(vector), DIM)
            self.assertAlmostEqual(sum(number * number for number in vector), 1.0, places=5)

    def test_batches_do_not_show_and_rows_come_in_the_order_given(self):
        given = texts(20)
        expected = self.run_with(["embed", "-m", self.bert], given=given)
        for batch in (1, 17, 65536):
            self.assertEqual(self.run_with(["embed", "-m", self.bert, "--batch-tokens", batch], given=given), expected)
        alone = b"".join(self.run_with(["embed", "-m", self.bert, line]) for line in given.decode().splitlines())
        self.assertEqual(alone, expected)

    def test_poolings_differ_and_shorter_vectors_are_the_longer_ones_front(self):
        def vector(*arguments):
            shown = self.run_with(["embed", "-m", self.bert, "--json", "--no-normalize", "a text of words", *arguments])
            return json.loads(shown)["vector"]
        vectors = {pooling: vector("--pooling", pooling)
                   for pooling in ("mean", "cls", "last", "max", "mean_sqrt", "weightedmean")}
        self.assertEqual(len({tuple(one) for one in vectors.values()}), 6)
        self.assertEqual(vector(), vectors["mean"])
        self.assertEqual(vector("--dim", 7), vectors["mean"][:7])
        for arguments, sentence in ((("--pooling", "middle"), b"no kind of pooling"), (("--dim", DIM + 1), b"have 48"),
                                    (("--prompt-name", "query"), b"no prompt named")):
            run = butterfly("embed", "-m", self.bert, "a", *arguments)
            self.assertEqual(run.returncode, 2)
            self.assertIn(sentence, run.stderr)

    def test_masks_are_filled_alike_everywhere(self):
        shown = self.everywhere(["fill", "-m", self.bert, "--json", "--choices", 3, "a [MASK] of", "is [MASK] [MASK]"])
        lines = [json.loads(line) for line in shown.decode().splitlines()]
        self.assertEqual([len(line["masks"]) for line in lines], [1, 2])
        for line in lines:
            for mask in line["masks"]:
                scores = [choice["score"] for choice in mask["choices"]]
                self.assertEqual(scores, sorted(scores, reverse=True))
        run = butterfly("fill", "-m", self.bert, "nothing is hidden")
        self.assertEqual(run.returncode, 2)
        self.assertIn(b"none of them is the mask", run.stderr)

    def test_an_encoder_with_a_decoder_writes_the_same_text_everywhere(self):
        command = ["generate", "-m", self.t5, "-p", "each of them is read", "-n", 30, "--ignore-end", "--temp", 0.8]
        self.everywhere(command)

    def test_a_model_of_hidden_rows_gives_vectors_and_an_encoder_continues_nothing(self):
        self.everywhere(["embed", "-m", DEMO, "to be", "or not to be"])
        run = butterfly("generate", "-m", self.bert, "-p", "a")
        self.assertEqual(run.returncode, 2)
        self.assertIn(b"continues no text: it is an encoder", run.stderr)
        run = butterfly("fill", "-m", DEMO, "a")
        self.assertIn(b"is no encoder", run.stderr)

    def test_a_killed_worker_changes_no_vector(self):
        self.strike(["embed", "-m", self.bert, "--batch-tokens", 40], given=texts(200))

    def test_a_killed_member_of_a_group_changes_no_vector(self):
        self.strike(["embed", "-m", self.bert, "--batch-tokens", 40], given=texts(200), split="tensor")

    def test_a_killed_worker_changes_no_text_of_an_encoder_with_a_decoder(self):
        self.strike(["generate", "-m", self.t5, "-p", "each of them is read", "-n", 200, "--ignore-end", "--temp", 0.8])


if __name__ == "__main__":
    unittest.main()
