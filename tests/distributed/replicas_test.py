"""A server with several copies of its model: who computes what, and what becomes of texts when copies die."""

import time
import unittest

from program import DEMO, Worker, butterfly
from serve_kit import TIMEOUT_S, Server, events

BODY = {"max_tokens": 300, "temperature": 0.9, "ignore_eos": True}
PROMPTS = ["ROMEO:", "JULIET:", "First Citizen:", "The king", "O, ", "MENENIUS: you"]


def body(index, **more):
    return dict(BODY, prompt=PROMPTS[index], seed=index, **more)


def joined(content):
    found = events(content)
    assert found[-1][2] == "[DONE]", found[-1]
    return "".join(choice["text"] for _, _, data in found[:-1] for choice in data["choices"])


def until(condition):
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.1)


class Replicas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server() as server:
            cls.expected = [server.good("/v1/completions", body(i))["choices"][0]["text"] for i in range(len(PROMPTS))]

    def serve(self, workers, *more):
        return Server("--workers", ",".join(worker.address for worker in workers), "--recover-within", "3",
                      "--parallel", "8", *more)

    def ups(self, server):
        return [replica["up"] for replica in server.good("/v1/cluster")["replicas"]]

    def texts(self, server, disturb=lambda: None):
        """Texts of streams side by side; `disturb` is called once each has begun."""
        connections = [server.send("POST", "/v1/completions", body(i, stream=True)) for i in range(len(PROMPTS))]
        answers = [connection.getresponse() for connection in connections]
        begun = [answer.read1(1 << 10) for answer in answers]
        disturb()
        texts = [joined(first + answer.read()) for first, answer in zip(begun, answers)]
        for connection in connections:
            connection.close()
        return texts

    def test_each_replica_computes_and_texts_are_the_same(self):
        with Worker() as one, Worker() as two, self.serve([one, two], "--replicas", "2") as server:
            self.assertEqual(self.texts(server), self.expected)
            cluster = server.good("/v1/cluster")
            self.assertEqual([node["replica"] for node in cluster["nodes"]], [0, 1])
            self.assertEqual({(node["first_layer"], node["last_layer"]) for node in cluster["nodes"]}, {(0, 4)})
            time.sleep(1.1)  # nodes are looked at once a second, when a text ends
            self.texts(server)
            self.assertTrue(all(node["busy_s"] > 0 for node in server.good("/v1/cluster")["nodes"]))
            self.assertEqual(server.terminate(), 0)

    def test_texts_of_a_replica_that_dies_go_on_and_it_comes_back(self):
        with Worker() as one, Worker() as two, self.serve([one, two], "--replicas", "2") as server:
            self.assertEqual(self.texts(server, one.process.kill), self.expected)
            self.assertEqual(self.ups(server), [False, True])
            self.assertEqual(server.good("/health/ready"), {"status": "ok"})
            time.sleep(4)  # longer than it is waited for
            self.assertEqual(self.texts(server), self.expected)
            with Worker("--listen", one.address) as again:
                del again

                def is_back():
                    self.assertEqual(self.texts(server), self.expected)
                    return self.ups(server) == [True, True]

                until(is_back)

    def test_texts_wait_for_any_replica_where_all_die(self):
        with Worker() as one, Worker() as two, self.serve([one, two], "--replicas", "2") as server:
            again = []

            def disturb():
                one.process.kill()
                until(lambda: not self.ups(server)[0])
                two.process.kill()
                until(lambda: self.ups(server) == [False, False])
                again.append(Worker("--listen", two.address))

            try:
                self.assertEqual(self.texts(server, disturb), self.expected)
            finally:
                for worker in again:
                    worker.__exit__()

    def test_a_server_for_many_texts_has_as_many_as_there_are_workers(self):
        with Worker() as one, Worker() as two:
            for goal, count in (("throughput", 2), ("latency", 1)):
                with self.serve([one, two], "--goal", goal) as server:
                    self.assertEqual(len(self.ups(server)), count)

    def test_nodes_of_one_process_are_replicas_too(self):
        with Server("--replicas", "2", "--nodes", "2", "--parallel", "8") as server:
            self.assertEqual([node["replica"] for node in server.good("/v1/cluster")["nodes"]], [0, 0, 1, 1])
            self.assertEqual(self.texts(server), self.expected)

    def test_what_makes_no_replicas_is_refused(self):
        for arguments, words in ((["--workers", "127.0.0.1:1", "--replicas", "2"], "1 workers for 2 replicas"),
                                 (["--join-at", "127.0.0.1:0", "--replicas", "2"], "2 replicas to choose from"),
                                 (["--embeddings", "--replicas", "2"], "gives vectors")):
            run = butterfly("serve", "-m", DEMO, "--listen", "127.0.0.1:0", "--journal", "off", *arguments, text=True)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(words, run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
