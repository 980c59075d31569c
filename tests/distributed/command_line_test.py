#!/usr/bin/env python3
"""What the command line says about words that it does not know."""

import unittest

from program import butterfly


def said(*words):
    run = butterfly(*words, text=True)
    return run.returncode, run.stdout, run.stderr


class UnknownWords(unittest.TestCase):
    def refused(self, *words):
        status, output, errors = said(*words)
        self.assertEqual((status, output), (2, ""), errors)
        self.assertEqual(errors.count("\n"), 1, "one sentence")
        return errors

    def test_a_misspelt_command_is_named_with_the_one_that_is_near(self):
        self.assertIn("no command 'trian' (did you mean 'train'?); 'butterfly --help'", self.refused("trian", "--steps", "3"))
        self.assertIn("'modle' (did you mean 'model'?); 'butterfly bench --help'", self.refused("bench", "modle"))

    def test_a_misspelt_option_is_named_with_the_one_that_is_near(self):
        for words in (("--stesp", "5"), ("--stesp=5",), ("--steps", "5", "--stesp")):
            self.assertIn("no option '--stesp' (did you mean '--steps'?); 'butterfly train --help'", self.refused("train", *words))

    def test_an_option_is_found_without_the_section_that_it_is_in(self):
        for word in ("--speeds", "--spedds"):
            self.assertIn(f"no option '{word}' (did you mean '--parallel.speeds'?)", self.refused("train", word, "1,2"))

    def test_a_word_that_is_near_to_nothing_gets_no_advice(self):
        self.assertIn("no command 'xyz'; ", self.refused("xyz"))
        self.assertIn("no option '--qqqqqq'; ", self.refused("worker", "--qqqqqq"))

    def test_help_is_there_for_every_command(self):
        status, output, _ = said("train", "--help", "--stesp")
        self.assertEqual(status, 0)
        self.assertIn("--steps", output)


if __name__ == "__main__":
    unittest.main()
