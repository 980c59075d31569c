"""The gate itself: it must fail for one more copy, and for a number that nobody expects."""

import unittest

from counts import calls_of, compare

LIMITS = {"bytes copied per token": {"value": 1040, "percent": 1}, "instructions": {"value": 1000, "percent": 3}}


class CountsTest(unittest.TestCase):
    def test_equal_numbers_and_those_within_their_room_pass(self):
        self.assertEqual(compare({"bytes copied per token": 1040, "instructions": 1029}, LIMITS), [])

    def test_one_more_copy_of_a_row_fails(self):
        faults = compare({"bytes copied per token": 2064, "instructions": 1000}, LIMITS)
        self.assertEqual(len(faults), 1)
        self.assertIn("more than 1040", faults[0])

    def test_a_number_that_fell_fails_too(self):
        self.assertIn("less than 1000", compare({"bytes copied per token": 1040, "instructions": 900}, LIMITS)[0])

    def test_missing_and_unknown_numbers_fail(self):
        faults = compare({"instructions": 1000, "x": 1}, LIMITS)
        self.assertEqual(len(faults), 2)

    def test_calls_are_found_by_name_and_by_number(self):
        profile = ("fn=(1) main\ncalls=7 1\ncfn=(2) team::run(int)\ncalls=3 0 0\n16 4\ncfn=(3) other\ncalls=9 0\n"
                   "fn=(2)\n16 1\ncfn=(3)\ncalls=5 0\nfn=(4) leaf\ncfn=(2)\ncalls=4 0\n")
        self.assertEqual(calls_of("team::run", profile), 7)


if __name__ == "__main__":
    unittest.main()
