"""A cluster with credentials, from `butterfly cluster init` to a revoked worker: who is let in, and that the text is the
same. What single bytes do is tested in src/butterfly/wire/enrolment/tls_test.cc."""

import json
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import unittest
from contextlib import ExitStack

from program import DEMO, PROGRAM, Worker, butterfly, environment

PROMPT = "ROMEO:\nO, she doth teach the torches"


def generate(*arguments):
    return butterfly("generate", "-m", DEMO, "-p", PROMPT, "-n", 30, "--threads", 1, *arguments)


class Admission:
    """`butterfly cluster admit`, and everything it says."""

    def __init__(self, folder, *arguments):
        self.process = subprocess.Popen(
            [PROGRAM, "cluster", "admit", "--credentials", folder, "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        line = self.process.stderr.readline()
        if not line.startswith(b"admitting on "):
            raise RuntimeError(line)
        self.address = line.split()[2].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log()

    def log(self):
        """Ends it; what it wrote to stderr since it listens."""
        if self.process.poll() is None:
            self.process.terminate()
            self.errors = self.process.communicate(timeout=20)[1].decode()
        return self.errors


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.coordinator = self.member("coordinator")
        made = butterfly("cluster", "init", self.coordinator)
        assert made.returncode == 0, made.stderr

    def member(self, name):
        return os.path.join(self.folder, name)

    def token(self, *arguments):
        printed = butterfly("cluster", "token", "--credentials", self.coordinator, *arguments)
        assert printed.returncode == 0, printed.stderr
        return printed.stdout.decode().strip()

    def enroll(self, name, address, token):
        return butterfly("cluster", "enroll", address, token, "--name", name, "--credentials", self.member(name))


class Security(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(os.path.join(cls.folder.name, "cluster"))
        with Admission(cls.cluster.coordinator) as admission:
            for name in ("worker-a", "worker-b"):
                enrolled = cls.cluster.enroll(name, admission.address, cls.cluster.token())
                assert enrolled.returncode == 0, enrolled.stderr
        cls.expected = generate()
        assert cls.expected.returncode == 0, cls.expected.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def worker(self, name, *arguments):
        return Worker("--credentials", self.cluster.member(name), *arguments)

    def coordinate(self, *addresses):
        return generate("--credentials", self.cluster.coordinator, "--workers", ",".join(addresses), "--split", "uniform")

    def refused(self, run, *words):
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stdout, b"")
        lines = [line for line in run.stderr.decode().splitlines() if line.startswith("butterfly: ")]
        self.assertEqual(len(lines), 1, run.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def first_line(self, *arguments):
        worker = subprocess.Popen([PROGRAM, "worker", "--listen", "0.0.0.0:0", "--threads", "1", *arguments],
                                  stderr=subprocess.PIPE, env=environment(BUTTERFLY_LOG="warn"))
        line = worker.stderr.readline()
        worker.kill()
        worker.communicate()
        return line

    # Fails when a tensor, a weight or a control message changes on its way through TLS.
    def test_two_workers_with_credentials_write_the_same_bytes(self):
        with self.worker("worker-a") as a, self.worker("worker-b") as b:
            run = self.coordinate(a.address, b.address)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout, self.expected.stdout)

    # Fails when a worker with credentials answers anybody else, or does not recover from having refused.
    def test_strangers_are_refused_each_with_a_line_and_the_worker_serves_on(self):
        other = Cluster(os.path.join(self.folder.name, "other"))
        with self.worker("worker-a") as worker:
            self.refused(generate("--workers", worker.address), worker.address)
            self.refused(generate("--credentials", other.coordinator, "--workers", worker.address), "another cluster")
            self.refused(generate("--credentials", self.cluster.member("worker-b"), "--workers", worker.address))
            run = self.coordinate(worker.address)
            self.assertEqual(run.stdout, self.expected.stdout, run.stderr)
            worker.process.terminate()
            log = worker.process.stderr.read().decode()
        refusals = [line for line in log.splitlines() if "refused" in line]
        self.assertIn("does not speak TLS", refusals[0])
        self.assertIn("only a coordinator's may open a control connection", refusals[-1])
        self.assertEqual(len(refusals), 3, log)

    # Fails when a node with credentials falls back to plain text on loopback.
    def test_a_coordinator_with_credentials_does_not_use_a_worker_without(self):
        with Worker() as plain:
            self.refused(self.coordinate(plain.address), "speaks TLS only")

    # Fails when an unfinished handshake blocks the port.
    def test_silence_and_garbage_delay_nobody(self):
        with self.worker("worker-a") as worker, ExitStack() as stack:
            host, port = worker.address.split(":")
            for i in range(30):
                peer = stack.enter_context(socket.create_connection((host, int(port))))
                if i % 2:
                    peer.send(os.urandom(300))
            run = self.coordinate(worker.address)
            self.assertEqual(run.stdout, self.expected.stdout, run.stderr)

    def test_a_token_admits_once_and_in_time(self):
        with Admission(self.cluster.coordinator) as admission:
            token = self.cluster.token()
            first = self.cluster.enroll("once", admission.address, token)
            self.assertEqual(first.returncode, 0, first.stderr)
            self.refused(self.cluster.enroll("twice", admission.address, token), admission.address)
            self.assertFalse(os.path.exists(os.path.join(self.cluster.member("twice"), "node.key")))
            short = self.cluster.token("--expires", "1s")
            time.sleep(2)
            self.refused(self.cluster.enroll("late", admission.address, short), "expired at")
            self.refused(self.cluster.enroll("slip", admission.address, token[:-1]), "no join token")
            log = admission.log()
        self.assertEqual(len([line for line in log.splitlines() if "refused" in line]), 1, log)
        self.assertIn("used before", log)

    # Fails when the coordinator does not read its own list of revocations.
    def test_a_revoked_worker_is_not_used(self):
        with Admission(self.cluster.coordinator) as admission:
            enrolled = self.cluster.enroll("leaver", admission.address, self.cluster.token())
            self.assertEqual(enrolled.returncode, 0, enrolled.stderr)
            with self.worker("leaver") as worker:
                self.assertEqual(self.coordinate(worker.address).stdout, self.expected.stdout)
                revoked = butterfly("cluster", "revoke", "leaver", "--credentials", self.cluster.coordinator)
                self.assertEqual(revoked.returncode, 0, revoked.stderr)
                self.refused(self.coordinate(worker.address), "its certificate was revoked")
            renewed = butterfly("cluster", "renew", admission.address, "--credentials", self.cluster.member("leaver"))
            self.refused(renewed, "revoked")
        listed = butterfly("cluster", "list", "--json", "--credentials", self.cluster.coordinator)
        states = {node["name"]: node["state"] for node in json.loads(listed.stdout)}
        self.assertEqual(states["leaver"], "revoked")
        self.assertEqual(states["worker-a"], "valid")

    def test_a_node_renews_its_certificate_while_it_runs(self):
        with self.worker("worker-a") as worker, Admission(self.cluster.coordinator) as admission:
            key = pathlib.Path(self.cluster.member("worker-a"), "node.key")
            before = key.read_bytes()
            renewed = butterfly("cluster", "renew", admission.address,
                                "--credentials", self.cluster.member("worker-a"))
            self.assertEqual(renewed.returncode, 0, renewed.stderr)
            self.assertNotEqual(before, key.read_bytes())
            self.assertEqual(self.coordinate(worker.address).stdout, self.expected.stdout)

    def test_secrets_are_files_of_their_owner_alone(self):
        for root, folders, files in os.walk(self.cluster.folder):
            for name in files:
                mode = stat.S_IMODE(os.stat(os.path.join(root, name)).st_mode)
                if name.endswith(".key") or name in ("tokens", "nodes", "lock"):
                    self.assertEqual(mode, 0o600, name)
            for name in folders:
                self.assertEqual(stat.S_IMODE(os.stat(os.path.join(root, name)).st_mode), 0o700, name)
        copy = os.path.join(self.folder.name, "readable")
        shutil.copytree(self.cluster.member("worker-b"), copy)
        os.chmod(os.path.join(copy, "node.key"), 0o644)
        self.refused(butterfly("worker", "--credentials", copy), "node.key", "0644", "0600")

    def test_addresses_beyond_loopback_need_credentials_or_a_loud_word(self):
        self.refused(butterfly("worker", "--listen", "0.0.0.0:0"), "loopback")
        self.assertIn(b"listening on 0.0.0.0:", self.first_line("--credentials", self.cluster.member("worker-a")))
        self.assertIn(b"WARNING: --insecure", self.first_line("--insecure"))
        both = butterfly("worker", "--insecure", "--credentials", self.cluster.member("worker-a"))
        self.assertEqual(both.returncode, 2)


if __name__ == "__main__":
    unittest.main()
