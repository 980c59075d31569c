"""The gate itself: it must fail for one more copy, and for a number that nobody expects."""

import unittest

from counts import compare

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


if __name__ == "__main__":
    unittest.main()
