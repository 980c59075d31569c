#!/usr/bin/env python3
"""Every campaign can fail: with --break it must end with 1 and say BROKEN or SLOW, not with 0 or a crash."""

import os
import subprocess
import sys
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))


class EveryCampaignCanFail(unittest.TestCase):
    def fails(self, script, *arguments):
        run = subprocess.run([sys.executable, "-B", os.path.join(FOLDER, script), "--break", *arguments], capture_output=True,
                             text=True, timeout=120, check=False)
        if run.returncode == 77:
            self.skipTest(run.stdout.strip())
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertRegex(run.stdout, "BROKEN|ANOTHER")
        self.assertNotIn("Traceback", run.stderr)

    def test_kill_matrix(self):
        self.fails("kill_matrix.py", "--random", "2", "--seed", "1")

    def test_membership(self):
        self.fails("membership.py", "--quick")

    def test_hygiene(self):
        self.fails("hygiene.py")

    def test_training_kills(self):
        self.fails("training_kills.py", "--kills", "1")

    def test_serving(self):
        self.fails("serving.py", "--quick")

    def test_hundred(self):
        self.fails("hundred.py", "--quick")

    def test_siege(self):
        self.fails("siege.py", "--quick")

    def test_first_handshake(self):
        self.fails("first_handshake.py")

    def test_attacks(self):
        self.fails("attacks.py")

    def test_rebalance(self):
        self.fails("rebalance.py")

    def test_experts(self):
        self.fails("experts.py", "--quick")

    def test_balance(self):
        self.fails("balance.py")

    def test_mutations(self):
        self.fails("mutations.py", "--count", "1")

    def test_slow_link(self):
        self.fails("slow_link.py", "--quick")


if __name__ == "__main__":
    unittest.main()
