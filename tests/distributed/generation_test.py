#!/usr/bin/env python3
"""Sampling and answers of a given form, as a user of the program meets them: alone, split, and when a worker dies."""

import json
import re
import subprocess
import tempfile
import unittest

from program import DEMO, PROGRAM, Worker, butterfly, environment

SCHEMA = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False}


def is_person(text):
    made = json.loads(text)
    return (list(made) == ["name", "age", "tags"] and 1 <= len(made["name"]) <= 30 and type(made["age"]) is int
            and 0 <= made["age"] <= 120 and len(made["tags"]) <= 3 and set(made["tags"]) <= {"a", "b"})


class Generation(unittest.TestCase):
    def generate(self, *words):
        run = butterfly("generate", "-m", DEMO, "-p", "ROMEO:", "-q", *words)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.decode()

    def refused(self, *words):
        run = butterfly("generate", "-m", DEMO, "-p", "ROMEO:", "-q", *words)
        self.assertEqual((run.returncode, run.stdout), (2, b""), run.stderr)
        return run.stderr.decode()

    def report(self, *words):
        return json.loads(self.generate("--json", *words))


class Forms(Generation):
    def test_every_answer_is_what_the_schema_says_split_or_not(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(SCHEMA, file)
            file.flush()
            for seed in range(6):
                words = ("--json-schema", file.name, "--temp", "1.5", "--seed", str(seed), "-n", str(26 + 10 * seed))
                text = self.generate(*words)
                self.assertTrue(is_person(text), text)
                self.assertEqual(text, self.generate(*words, "--nodes", "3", "--prefill-chunk", "2"))
        self.assertFalse(is_person('{"name":"x","age":121,"tags":[]}'))

    def test_a_limit_below_the_shortest_answer_is_refused_with_both_numbers(self):
        said = self.refused("--json-schema", json.dumps(SCHEMA), "-n", "4")
        found = re.search(r"shortest text that the grammar allows takes (\d+) tokens, 4 may be generated", said)
        self.assertTrue(found, said)
        self.assertTrue(is_person(self.generate("--json-schema", json.dumps(SCHEMA), "-n", found.group(1))))

    def test_expressions_grammars_and_objects(self):
        self.assertRegex(self.generate("--regex", "(red|green){2} [0-9]{3,}", "-n", "20", "--temp", "2"),
                         r"\A(red|green){2} [0-9]{3,}\n\Z")
        with tempfile.NamedTemporaryFile("w", suffix=".gbnf") as file:
            file.write('root ::= "(" root ")" | "x"\n')
            file.flush()
            text = self.generate("--grammar", file.name, "-n", "31", "--temp", "1").strip()
            depth = text.count("(")
            self.assertEqual(text, "(" * depth + "x" + ")" * depth)
        self.assertIsInstance(json.loads(self.generate("--json-object", "-n", "25", "--temp", "1", "--ignore-end")), dict)

    def test_what_cannot_be_kept_to_is_refused_before_the_model_is_loaded(self):
        self.assertIn("#/properties/a: the keyword dependentSchemas",
                      self.refused("--json-schema", '{"properties": {"a": {"dependentSchemas": {}}}}'))
        self.assertIn("look-ahead", self.refused("--regex", "a(?=b)"))
        self.assertIn("regex and json-object ask for two forms", self.refused("--regex", "a", "--json-object"))
        self.assertIn("/nowhere.json", self.refused("--json-schema", "/nowhere.json"))

    def test_a_worker_killed_in_an_answer_changes_nothing_of_it(self):
        words = ("generate", "-m", DEMO, "-p", "ROMEO:", "-q", "-n", "250", "--temp", "1", "--regex", "([a-z]{1,9} ){60,}[A-Z]")
        expected = butterfly(*words).stdout
        self.assertRegex(expected.decode(), r"\A([a-z]{1,9} ){60,}[A-Z]\n\Z")
        with Worker() as a, Worker() as b:
            running = subprocess.Popen([PROGRAM, *words, "--workers", f"{a.address},{b.address}", "--split", "uniform"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            first = running.stdout.read(len(expected) // 3)
            b.process.kill()
            rest = running.stdout.read()
            errors = running.stderr.read()
            self.assertEqual(running.wait(timeout=60), 0, errors)
            running.stdout.close()
            running.stderr.close()
        self.assertEqual((running.returncode, first + rest), (0, expected), errors)


class Sampling(Generation):
    def test_samples_are_draws_of_their_own_and_the_first_is_the_only_one(self):
        words = ("-n", "12", "--temp", "1", "--seed", "5")
        one = self.report(*words)
        several = self.report(*words, "--n", "3", "--logprobs", "0")
        self.assertEqual([choice["index"] for choice in several["choices"]], [0, 1, 2])
        texts = [choice["text"] for choice in several["choices"]]
        self.assertEqual(texts[0], one["text"])
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(several["generated_tokens"], sum(len(choice["tokens"]) for choice in several["choices"]))
        self.assertIn("samples is 2", self.refused("--samples", "2"))

    def test_logprobs_are_those_of_the_model_whatever_is_done_to_its_logits(self):
        plain = self.report("-n", "1", "--logprobs", "4")["logprobs"]["content"][0]
        self.assertEqual(plain["id"], plain["top_logprobs"][0]["id"])
        second = plain["top_logprobs"][1]
        forced = self.report("-n", "1", "--logprobs", "4", "--logit-bias", f"{second['id']}:100")["logprobs"]["content"][0]
        self.assertEqual((forced["id"], forced["logprob"]), (second["id"], second["logprob"]))
        self.assertEqual(forced["top_logprobs"], plain["top_logprobs"])
        banned = self.report("-n", "1", "--logit-bias", f"{plain['id']}:-100")["tokens"]
        self.assertEqual(banned, [second["id"]])

    def test_stop_token_ids_end_before_the_token(self):
        tokens = self.report("-n", "12")["tokens"]
        stop = next(t for t in tokens[3:] if t not in tokens[:3])
        made = self.report("-n", "12", "--stop-token-ids", f"999999,{stop}", "--ignore-end")
        self.assertEqual((made["tokens"], made["finish_reason"]), (tokens[:tokens.index(stop)], "stop"))

    def test_penalties_leave_no_token_twice_in_the_answer(self):
        tokens = self.report("-n", "30", "--presence-penalty", "2", "--frequency-penalty", "2", "--repeat-penalty", "9",
                             "--repeat-last-n", "-1")["tokens"]
        again = self.report("-n", "30")["tokens"]
        self.assertGreater(len(set(tokens)), len(set(again)))

    def test_wrong_values_are_named(self):
        for words, said in ((("--presence-penalty", "3"), "presence-penalty"), (("--logit-bias", "x:1"), "logit-bias"),
                            (("--logit-bias", "1:200"), "logit-bias is 200"), (("--logprobs", "-2"), "logprobs"),
                            (("--logit-bias", "99999999:1"), "logit-bias names token 99999999"),
                            (("--stop-token-ids", "a"), "stop-token-ids")):
            self.assertIn(said, self.refused(*words))


if __name__ == "__main__":
    unittest.main()
