"""The server as clients meet it: what is answered, refused, cancelled, and gone on with after deaths."""

import base64
import http.client
import json
import os
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from program import DEMO, Worker, butterfly
from scripted_model import write_scripted
from serve_kit import TIMEOUT_S, Server, events, read_some, write_template

PROMPT = {"prompt": "ROMEO:", "max_tokens": 24, "seed": 7, "temperature": 0.9}
CHAT = {"messages": [{"role": "user", "content": "O Romeo, wherefore art thou?"}], "max_tokens": 20, "seed": 5,
        "temperature": 0.8}


def joined_calls(stream):
    """Functions and arguments that a client puts together, and the number of deltas that brought arguments."""
    calls, deltas = {}, 0
    for _, _, data in stream[:-1]:
        for part in data["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], {"name": "", "arguments": ""})
            for name, text in part["function"].items():
                call[name] += text
            deltas += bool(part["function"].get("arguments"))
    return [calls[index] for index in sorted(calls)], deltas


class OneServer(unittest.TestCase):
    """One server for all cases."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server("--chat-template", write_template(cls.folder.name), "--alias", "demo")

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        cls.folder.cleanup()

    def choice(self, body, path="/v1/completions"):
        return self.server.good(path, body)["choices"][0]

    def refused(self, path, body, status, words, param=None, method=None, headers=None):
        found, _, content = self.server.ask(path, body, method=method, headers=headers)
        self.assertEqual(found, status, content)
        error = content["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertIn(words, error["message"])
        if param:
            self.assertEqual(error["param"], param)


class Texts(OneServer):
    def test_the_text_is_that_of_generate(self):
        run = butterfly("generate", "-m", DEMO, "-p", "ROMEO:", "-n", 24, "--seed", 7, "--temp", 0.9, "--json", "-q")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.choice(PROMPT)["text"], json.loads(run.stdout)["text"])

    def test_a_stream_joins_to_the_whole_answer(self):
        whole = self.server.good("/v1/completions", dict(PROMPT, n=3))
        stream = events(self.server.stream("/v1/completions", dict(PROMPT, n=3, stream=True,
                                                                   stream_options={"include_usage": True})))
        self.assertEqual([number for number, _, _ in stream], list(range(1, len(stream) + 1)))
        self.assertEqual(stream[-1][2], "[DONE]")
        texts = ["", "", ""]
        for _, _, data in stream[:-1]:
            for choice in data["choices"]:
                texts[choice["index"]] += choice["text"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(stream[-2][2]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])

    def test_prompts_are_texts_or_tokens_one_or_many(self):
        tokens = self.server.good("/tokenize", {"prompt": "ROMEO:"})["tokens"]
        one = self.choice(PROMPT)["text"]
        for prompt in (tokens, [tokens, tokens], ["ROMEO:", "JULIET:"]):
            found = self.server.good("/v1/completions", dict(PROMPT, prompt=prompt))["choices"]
            self.assertEqual(found[0]["text"], one)
        self.assertEqual(self.server.good("/detokenize", {"tokens": tokens[1:]})["prompt"].strip(), "ROMEO:")

    def test_a_stop_string_ends_the_text_before_it(self):
        text = self.choice(dict(PROMPT, temperature=0))["text"]
        stop = text[8:11]
        found = self.choice(dict(PROMPT, temperature=0, stop=[stop, "never"]))
        self.assertEqual(found["text"], text[:text.index(stop)])
        self.assertEqual(found["finish_reason"], "stop")

    def test_echo_has_the_log_probabilities_of_the_prompt(self):
        body = dict(prompt="ROMEO: I am", temperature=0, max_tokens=1, logprobs=1, echo=True)
        found = self.choice(body)
        logprobs = found["logprobs"]
        self.assertTrue(found["text"].startswith("ROMEO: I am"))
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertTrue(all(value <= 0 for value in logprobs["token_logprobs"][1:]))
        self.assertEqual({len(values) for values in logprobs.values()}, {len(logprobs["tokens"])})
        # What the prompt's last token gave as the best is what was drawn.
        self.assertAlmostEqual(max(logprobs["top_logprobs"][-1].values()), logprobs["token_logprobs"][-1])
        none = self.choice(dict(body, max_tokens=0))["logprobs"]
        self.assertEqual(none["token_logprobs"], logprobs["token_logprobs"][:-1])
        # Also where the text ends at once, so that who counts from the end finds the prompt.
        ended = self.choice(dict(body, logit_bias={"0": 100}))
        self.assertEqual((ended["finish_reason"], ended["text"]), ("stop", "ROMEO: I am"))
        self.assertEqual(ended["logprobs"]["tokens"], [*none["tokens"], "<|endoftext|>"])
        self.assertEqual(ended["logprobs"]["token_logprobs"][:-1], none["token_logprobs"])
        self.assertLess(ended["logprobs"]["token_logprobs"][-1], 0)
        # As a prompt, a text has the log-probabilities that its tokens had when they were drawn.
        drawn = self.choice(dict(body, max_tokens=8))
        read = self.choice(dict(body, prompt=drawn["text"], max_tokens=0))["logprobs"]
        self.assertEqual(read["tokens"], drawn["logprobs"]["tokens"])
        self.assertEqual(read["token_logprobs"], drawn["logprobs"]["token_logprobs"])
        self.assertEqual(read["text_offset"], drawn["logprobs"]["text_offset"])

    def test_log_probabilities_come_with_the_tokens(self):
        found = self.choice(dict(CHAT, logprobs=True, top_logprobs=3), "/v1/chat/completions")
        content = found["logprobs"]["content"]
        self.assertEqual(bytes(byte for each in content for byte in each["bytes"]).decode().strip(),
                         found["message"]["content"].strip())
        self.assertEqual({len(each["top_logprobs"]) for each in content}, {3})
        streamed = []
        stream = self.server.stream("/v1/chat/completions", dict(CHAT, logprobs=True, top_logprobs=3, stream=True))
        for _, _, data in events(stream)[:-1]:
            streamed += (data["choices"][0]["logprobs"] or {"content": []})["content"]
        self.assertEqual(streamed, content)

    def test_a_conversation_streams_its_answer(self):
        whole = self.choice(CHAT, "/v1/chat/completions")
        stream = events(self.server.stream("/v1/chat/completions", dict(CHAT, stream=True)))
        self.assertEqual(stream[0][2]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        text = "".join(data["choices"][0]["delta"].get("content", "") for _, _, data in stream[:-1])
        self.assertEqual(text, whole["message"]["content"])
        self.assertEqual(stream[-2][2]["choices"][0]["finish_reason"], whole["finish_reason"])

    def test_a_response_streams_events_that_build_it_up(self):
        body = {"input": "O Romeo", "max_output_tokens": 12, "seed": 5, "temperature": 0.8, "instructions": "Verona."}
        whole = self.server.good("/v1/responses", body)
        stream = events(self.server.stream("/v1/responses", dict(body, stream=True)))
        names = [name for _, name, _ in stream]
        self.assertEqual(names[:2], ["response.created", "response.in_progress"])
        self.assertEqual(names[-1], "response." + whole["status"])
        self.assertEqual([data["sequence_number"] for _, _, data in stream], list(range(len(stream))))
        text = "".join(data["delta"] for _, name, data in stream if name == "response.output_text.delta")
        self.assertEqual(text, whole["output"][0]["content"][0]["text"])
        self.assertEqual(stream[-1][2]["response"]["output"][0]["content"][0]["text"], text)

    def test_an_answer_has_the_form_that_is_asked_for(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
                  "required": ["name", "age"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
        found = self.choice(dict(CHAT, max_tokens=60, response_format=form), "/v1/chat/completions")
        person = json.loads(found["message"]["content"])
        self.assertEqual((list(person), type(person["age"])), (["name", "age"], int))

    def test_a_call_that_is_asked_for_is_made(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Verona", "Mantua"]}}, "required": ["city"],
            "additionalProperties": False}}} for name in ("weather", "time")]
        for choice in ({"type": "function", "function": {"name": "weather"}}, "required"):
            body = dict(CHAT, max_tokens=100, tools=tools, tool_choice=choice)
            found = self.choice(body, "/v1/chat/completions")
            self.assertEqual(found["finish_reason"], "tool_calls")
            calls = found["message"]["tool_calls"]
            self.assertIn(calls[0]["function"]["name"], ("weather", "time"))
            self.assertIn(json.loads(calls[0]["function"]["arguments"])["city"], ("Verona", "Mantua"))
            streamed, deltas = joined_calls(events(self.server.stream("/v1/chat/completions", dict(body, stream=True))))
            self.assertEqual(streamed, [call["function"] for call in calls])
            self.assertGreater(deltas, len(calls))
            named = isinstance(choice, dict)
            body = {"input": "Where?", "max_output_tokens": 100, "seed": 5, "temperature": 0.8, "tool_choice": choice,
                    "tools": [dict(tool["function"], type="function") for tool in tools]}
            whole = self.server.good("/v1/responses", body)["output"]
            self.assertEqual([item["type"] for item in whole], ["function_call"] * len(whole))
            stream = events(self.server.stream("/v1/responses", dict(body, stream=True)))
            arguments = "".join(data["delta"] for _, name, data in stream
                                if name == "response.function_call_arguments.delta")
            self.assertEqual(arguments, "".join(item["arguments"] for item in whole))
            self.assertTrue(not named or whole[0]["name"] == "weather")


class Refusals(OneServer):
    def test_each_mistake_is_named(self):
        ask = dict(CHAT)
        for body, words, param in (
                (dict(ask, temperature="hot"), "temperature is string, expected a number", "temperature"),
                (dict(ask, temperature=9), "temperature is 9", "temperature"),
                (dict(ask, temprature=1), "did you mean temperature?", "temprature"),
                (dict(ask, n=0), "n is 0", "n"),
                (dict(ask, messages=[]), "empty list", "messages"),
                (dict(ask, messages="hi"), "messages is string", "messages"),
                (dict(ask, messages=[{"role": "user"}]), "messages[0].content is missing", "messages[0].content"),
                (dict(ask, messages=[{"role": "wizard", "content": ""}]), "wizard", "messages[0].role"),
                (dict(ask, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "only text", None),
                (dict(ask, stop=[""]), "stop has a string of 0 bytes", "stop"),
                (dict(ask, top_logprobs=2), "logprobs is not true", "top_logprobs"),
                (dict(ask, logit_bias={"x": 1}), "logit_bias", "logit_bias"),
                (dict(ask, tool_choice="required"), "there are no tools", "tool_choice"),
                (dict(ask, response_format={"type": "json_schema", "json_schema": {
                    "schema": {"type": "object", "patternProperties": {}}}}), "patternProperties", "response_format"),
                (dict(ask, messages=[{"role": "user", "content": "word " * 2000}]), "the context of 512", "messages")):
            self.refused("/v1/chat/completions", body, 400, words, param)
        self.refused("/v1/completions", dict(PROMPT, suffix="x"), 400, "suffix is not supported", "suffix")
        self.refused("/v1/completions", dict(PROMPT, prompt=[10 ** 6]), 400, "1000000", "prompt")
        self.refused("/v1/completions", {}, 400, "prompt is missing", "prompt")
        self.refused("/v1/chat/completions", dict(ask, model="other"), 404, 'no model "other"', "model")
        self.refused("/v1/embeddings", {"input": "x"}, 400, "--embeddings")

    def test_each_body_that_is_no_json_is_refused(self):
        for body, words in ((b"{", "no valid JSON"), (b"", "no valid JSON"), (b"[1]", "expected an object"),
                            (b'{"prompt": "\xff"}', "no UTF-8: byte 12"), (b'{"a":' * 100 + b"1" + b"}" * 100, "deeper")):
            self.refused("/v1/completions", body, 400, words, method="POST")

    def test_unknown_places_and_methods_are_told(self):
        self.refused("/v1/nothing", None, 404, "there is no /v1/nothing")
        self.refused("/v1/models/other", None, 404, "other")
        self.refused("/v1/streams/cmpl-1", None, 404, "cmpl-1")
        self.refused("/v1/completions", None, 405, "takes POST", method="GET")
        self.assertEqual(self.server.ask("/v1/models", method="DELETE")[1]["Allow"], "GET")

    def test_web_pages_have_no_access_unless_it_is_given(self):
        _, headers, _ = self.server.ask("/v1/models", headers={"Origin": "http://evil.example"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)


class States(OneServer):
    def test_states_and_counts_are_shown(self):
        self.assertEqual(self.server.good("/health/ready"), {"status": "ok"})
        self.assertEqual(self.server.good("/v1/models")["data"][0]["id"], "demo")
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.good("/v1/completions", dict(PROMPT, ignore_eos=True))
        self.assertEqual(self.server.metric("butterfly_generated_tokens_total"), before + 24)
        for name in ("time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time",
                     "inter_token_latency", "request_time_per_output_token", "e2e_request_latency"):
            self.assertGreater(self.server.metric(f"vllm:{name}_seconds_count"), 0)
        text = self.server.ask("/metrics")[2].decode()
        for line in text.splitlines():
            self.assertEqual(line.startswith("vllm:"), line.startswith("vllm:") and 'model_name="demo"' in line, line)
        self.assertEqual(self.server.good("/v1/cluster")["nodes"][0]["name"], "this process")

    def test_a_client_that_hangs_up_is_not_computed_for(self):
        for stream in (True, False):
            before = self.server.metric("butterfly_requests_cancelled_total")
            connection = self.server.send("POST", "/v1/completions",
                                          dict(PROMPT, max_tokens=500, n=16, stream=stream, ignore_eos=True))
            if stream:
                read_some(connection, 3)
            else:
                time.sleep(0.3)
            connection.sock.shutdown(socket.SHUT_RDWR) if connection.sock else None
            connection.close()
            end = time.monotonic() + TIMEOUT_S
            while self.server.metric("butterfly_requests_cancelled_total") == before and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(self.server.metric("butterfly_requests_cancelled_total"), before + 16)
            self.assertEqual(self.server.metric("butterfly_requests_running"), 0)


class Known(unittest.TestCase):
    """A model whose answers are known: what is made of its reasoning and its calls."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(model=write_scripted(os.path.join(cls.folder.name, "scripted")))

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        cls.folder.cleanup()

    TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"at": {"enum": ["noon", "night"]}}, "required": ["at"],
        "additionalProperties": False}}} for name in ("weather", "clock")]
    FORM = {"type": "json_schema", "json_schema": {"name": "when", "schema": TOOLS[0]["function"]["parameters"]}}

    def answer(self, word, **more):
        body = {"messages": [{"role": "user", "content": word}], "temperature": 0, **more}
        found = self.server.good("/v1/chat/completions", body)["choices"][0]
        stream = events(self.server.stream("/v1/chat/completions", dict(body, stream=True)))
        deltas = [data["choices"][0]["delta"] for _, _, data in stream[:-1]]
        for name in ("content", "reasoning_content"):
            self.assertEqual("".join(delta.get(name, "") for delta in deltas), found["message"].get(name) or "")
        self.assertEqual(joined_calls(stream)[0], [call["function"] for call in found["message"].get("tool_calls", [])])
        return found["message"], found["finish_reason"]

    def test_calls_that_the_model_makes_of_itself_are_told_apart(self):
        message, reason = self.answer("twice", tools=self.TOOLS)
        self.assertEqual((message["content"], reason), ("I look it up.", "tool_calls"))
        self.assertEqual([call["function"]["name"] for call in message["tool_calls"]], ["weather", "clock"])
        self.assertEqual(len(self.answer("twice", tools=self.TOOLS, parallel_tool_calls=False)[0]["tool_calls"]), 1)
        self.assertNotIn("tool_calls", self.answer("twice", tools=self.TOOLS, tool_choice="none")[0])

    def test_a_form_begins_behind_the_reasoning(self):
        for more in ({"response_format": self.FORM}, {"guided_regex": '{"at": "(noon|night)"}'}):
            message, reason = self.answer("reason", max_tokens=60, **more)
            self.assertEqual((message["reasoning_content"], reason), ("First I weigh it all.", "stop"))
            self.assertIn(json.loads(message["content"])["at"], ("noon", "night"))
        for choice in ("required", {"type": "function", "function": {"name": "clock"}}):
            message, reason = self.answer("reason", max_tokens=100, tools=self.TOOLS, tool_choice=choice)
            self.assertEqual((message["reasoning_content"], reason), ("First I weigh it all.", "tool_calls"))
            self.assertIn(json.loads(message["tool_calls"][0]["function"]["arguments"])["at"], ("noon", "night"))

    def test_reasoning_without_an_end_leaves_room_for_the_form(self):
        for most in (14, 15, 40, 200):  # {"at":"noon"} and one token that closes
            message, reason = self.answer("muse", max_tokens=most, response_format=self.FORM)
            self.assertIn(json.loads(message["content"])["at"], ("noon", "night"))
            self.assertEqual(reason, "stop")
            self.assertEqual("Round" in message.get("reasoning_content", ""), most > 14)
        status, _, content = self.server.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "muse"}], "max_tokens": 13, "response_format": self.FORM})
        self.assertEqual(status, 400)
        self.assertIn("</think>", content["error"]["message"])


class Waiting(unittest.TestCase):
    LONG = dict(PROMPT, max_tokens=480, ignore_eos=True)

    def wait_for(self, server, name, value):
        end = time.monotonic() + TIMEOUT_S
        while server.metric(name) != value and time.monotonic() < end:
            time.sleep(0.005)
        self.assertEqual(server.metric(name), value)

    def test_of_those_that_wait_the_lowest_priority_goes_first(self):
        with Server("--parallel", "1") as server:
            first = server.send("POST", "/v1/completions", dict(self.LONG, n=8))
            self.wait_for(server, "butterfly_requests_running", 1)
            self.wait_for(server, "butterfly_requests_waiting", 7)
            ended, threads = [], []
            for i, priority in enumerate((20, 0, -20)):
                def ask(priority=priority):
                    server.good("/v1/completions", dict(PROMPT, priority=priority))
                    ended.append(priority)
                threads.append(threading.Thread(target=ask))
                threads[-1].start()
                self.wait_for(server, "butterfly_requests_waiting", 8 + i)
            for thread in threads:
                thread.join()
            self.assertEqual(ended, [-20, 0, 20])
            first.close()

    def test_a_stream_that_waits_shows_that_it_lives(self):
        with Server("--parallel", "1", "--keep-alive", "1") as server:
            first = server.send("POST", "/v1/completions", dict(self.LONG, n=128))
            self.wait_for(server, "butterfly_requests_running", 1)
            second = server.send("POST", "/v1/completions", dict(PROMPT, stream=True))
            answer = second.getresponse()
            content = answer.read1(1 << 12)
            self.assertRegex(content.decode(), r"^: .*\n\n")
            first.close()
            content += answer.read()
            second.close()
            alone = events(server.stream("/v1/completions", dict(PROMPT, stream=True)))
            texts = ["".join(data["choices"][0]["text"] for _, _, data in each[:-1]) for each in (events(content), alone)]
            self.assertEqual(texts[0], texts[1])


class Vectors(unittest.TestCase):
    def test_vectors_are_those_of_embed(self):
        texts = ["O Romeo", "wherefore art thou"]
        run = butterfly("embed", "-m", DEMO, *texts, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        expected = [json.loads(line)["vector"] for line in run.stdout.splitlines()]
        with Server("--embeddings") as server:
            found = server.good("/v1/embeddings", {"input": texts})
            self.assertEqual([one["embedding"] for one in found["data"]], expected)
            coded = server.good("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
            for one, vector in zip(coded["data"], expected):
                values = struct.unpack(f"<{len(vector)}f", base64.b64decode(one["embedding"]))
                self.assertEqual([struct.pack("<f", value) for value in vector],
                                 [struct.pack("<f", value) for value in values])
            tokens = server.good("/tokenize", {"prompt": texts[0]})["tokens"]
            self.assertEqual(server.good("/v1/embeddings", {"input": tokens})["data"][0]["embedding"], expected[0])
            short = server.good("/v1/embeddings", {"input": texts[0], "dimensions": 4})["data"][0]["embedding"]
            self.assertEqual(len(short), 4)
            self.assertEqual(server.ask("/v1/embeddings", {"input": []})[0], 400)
            self.assertEqual(server.ask("/v1/embeddings", {"input": "x", "dimensions": 10 ** 6})[0], 400)
            self.assertEqual(server.ask("/v1/completions", PROMPT)[0], 400)


class Limits(unittest.TestCase):
    def test_what_does_not_fit_the_queue_is_refused_for_now(self):
        with Server("--parallel", "1", "--queue", "2") as server:
            body = dict(PROMPT, max_tokens=400, ignore_eos=True)
            connections = [server.send("POST", "/v1/completions", body) for _ in range(8)]
            texts, refused = set(), 0
            for connection in connections:
                answer = connection.getresponse()
                content = json.loads(answer.read())
                connection.close()
                if answer.status == 200:
                    texts.add(content["choices"][0]["text"])
                    continue
                refused += 1
                self.assertEqual((answer.status, answer.getheader("Retry-After"), content["error"]["code"]),
                                 (429, "1", "queue_full"))
            self.assertGreater(refused, 0)
            self.assertEqual(len(texts), 1)

    def test_keys_decide_who_may_ask(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="utf-8") as file:
                file.write("# of the house\nromeo:montague-1\ncapulet-2\n")
            os.chmod(keys, 0o644)
            run = butterfly("serve", "-m", DEMO, "--api-keys", keys, "--listen", "127.0.0.1:0", text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn(keys, run.stderr)
            os.chmod(keys, 0o600)
            with Server("--api-keys", keys) as server:
                for key, status in ((None, 401), ("montague-", 401), ("montague-1", 200), ("capulet-2", 200),
                                    ("romeo:montague-1", 401)):
                    headers = {"Authorization": f"Bearer {key}"} if key else {}
                    self.assertEqual(server.ask("/v1/models", headers=headers)[0], status, key)
                self.assertEqual(server.ask("/health")[0], 200)
                romeo, other = ({"Authorization": f"Bearer {key}"} for key in ("montague-1", "capulet-2"))
                content = server.good("/v1/completions", PROMPT, headers=romeo)
                self.assertEqual(server.ask("/v1/streams/" + content["id"], headers=other)[0], 404)
                self.assertEqual(server.good("/v1/streams/" + content["id"], headers=romeo), content)

    def test_other_machines_are_not_served_without_keys_and_tls(self):
        run = butterfly("serve", "-m", DEMO, "--listen", "0.0.0.0:0", text=True)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertIn("--api-keys and --tls-cert", run.stderr)

    def test_tls_and_keys_open_an_address_to_others(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate, keys = (os.path.join(folder, name) for name in ("key.pem", "cert.pem", "keys"))
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
            with open(keys, "w", encoding="utf-8") as file:
                file.write("montague-1\n")
            os.chmod(keys, 0o600)
            os.chmod(key, 0o600)
            with Server("--api-keys", keys, "--tls-cert", certificate, "--tls-key", key, listen="0.0.0.0:0") as server:
                trust = ssl.create_default_context(cafile=certificate)
                port = server.address.rsplit(":", 1)[1]
                connection = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=TIMEOUT_S, context=trust)
                connection.request("POST", "/v1/completions", json.dumps(dict(PROMPT, stream=True)),
                                   {"Authorization": "Bearer montague-1"})
                content = connection.getresponse().read()
                connection.close()
                self.assertEqual(events(content)[-1][2], "[DONE]")

    def test_a_body_that_is_too_large_is_refused_as_such(self):
        with Server("--body-limit", "1") as server:
            status, _, content = server.ask("/v1/completions", b" " * (3 << 20), method="POST")
            self.assertEqual((status, content["error"]["code"]), (413, "body_too_large"))
            connection = server.connect()
            connection.putrequest("POST", "/v1/completions")
            connection.putheader("Content-Length", str(3 << 20))
            connection.putheader("Expect", "100-continue")
            connection.endheaders()
            self.assertEqual(connection.getresponse().status, 413)
            self.assertEqual(server.ask("/health")[0], 200)


class ComingBack(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.journal = os.path.join(folder.name, "journal")

    BODY = dict(PROMPT, max_tokens=300, n=2, stream=True, ignore_eos=True, stream_options={"include_usage": True})

    def whole_stream(self, server, request):
        return server.stream("/v1/streams/" + request, None)

    def entries(self):
        return [name for name in os.listdir(self.journal) if name.endswith(".json")]

    def test_a_reader_that_comes_back_goes_on_where_it_was(self):
        with Server(journal=self.journal) as server:
            connection = server.send("POST", "/v1/completions", self.BODY)
            first = read_some(connection, 5)
            connection.close()
            request = events(first)[0][2]["id"]
            self.assertEqual(len(self.entries()), 1)
            self.assertEqual(os.stat(os.path.join(self.journal, self.entries()[0])).st_mode & 0o777, 0o600)
            rest = server.stream("/v1/streams/" + request, None, headers={"Last-Event-ID": "5"})
            self.assertEqual(events(rest)[0][0], 6)
            self.assertEqual(self.whole_stream(server, request), first + rest)
            self.assertEqual(events(rest)[-1][2], "[DONE]")
            end = time.monotonic() + TIMEOUT_S
            while self.entries() and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(self.entries(), [])

    def test_a_server_that_was_killed_goes_on_with_the_same_bytes(self):
        with Server(journal=self.journal) as server:
            connection = server.send("POST", "/v1/completions", self.BODY)
            first = read_some(connection, 20)
            server.kill()
        request = events(first)[0][2]["id"]
        with Server(journal=self.journal) as server:
            self.assertIn("1 request of the server before this one", server.log_text())
            rest = server.stream("/v1/streams/" + request, None, headers={"Last-Event-ID": "20"})
            whole = self.whole_stream(server, request)
            self.assertEqual(first + rest, whole)
            again = server.good("/v1/completions", {key: value for key, value in self.BODY.items()
                                                    if not key.startswith("stream")})
            joined = ["", ""]
            for _, _, data in events(whole)[:-1]:
                for choice in data["choices"]:
                    joined[choice["index"]] += choice["text"]
            self.assertEqual(joined, [choice["text"] for choice in again["choices"]])

    def test_two_servers_do_not_share_a_journal(self):
        with Server(journal=self.journal):
            run = butterfly("serve", "-m", DEMO, "--listen", "127.0.0.1:0", "--journal", self.journal, text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn("the journal of a server that runs", run.stderr)

    def test_a_worker_that_dies_changes_no_byte(self):
        with Server(journal=self.journal) as server:
            expected = server.good("/v1/completions", {key: value for key, value in self.BODY.items()
                                                       if not key.startswith("stream")})
        with Worker() as one, Worker() as two:
            workers = f"{one.address},{two.address}"
            with Server("--workers", workers, "--split", "uniform", journal=self.journal) as server:
                connection = server.send("POST", "/v1/completions", self.BODY)
                answer = connection.getresponse()
                content = answer.read1(1 << 12)
                one.process.kill()
                content += answer.read()
                joined = ["", ""]
                for _, _, data in events(content)[:-1]:
                    for choice in data["choices"]:
                        joined[choice["index"]] += choice["text"]
                self.assertEqual(joined, [choice["text"] for choice in expected["choices"]])
                connection.close()
                self.assertEqual(len(server.good("/v1/cluster")["epochs"]), 2)

    def test_a_signal_lets_requests_end_and_takes_no_more(self):
        with Server(journal=self.journal) as server:
            connection = server.send("POST", "/v1/completions", self.BODY)
            read = connection.getresponse()
            first = read.read1(1 << 12)
            server.process.terminate()
            server.wait_for("no new requests")
            status, headers, _ = server.ask("/v1/completions", PROMPT)
            self.assertEqual((status, headers["Retry-After"]), (503, "1"))
            self.assertEqual(events(first + read.read())[-1][2], "[DONE]")
            connection.close()
            self.assertEqual(server.process.wait(timeout=TIMEOUT_S), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
