"""Conversations with the program: over a pipe, at a terminal, over workers of which one dies."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

from program import DEMO, PROGRAM, SANITIZED, Worker, butterfly, environment

TEMPLATE = ("{% for m in messages %}{{ ('JULIET' if m.role == 'assistant' else m.role | upper) + ':\\n' + m.content + '\\n\\n' }}"
            "{% endfor %}"
            "{% if add_generation_prompt %}{{ 'JULIET:\\n' }}{% endif %}")
FIRST = "O Romeo, wherefore art thou?"
SECOND = "Good night, good night!"


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.template = self.path("template.jinja")
        with open(self.template, "w", encoding="utf-8") as file:
            file.write(TEMPLATE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def messages(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)["messages"]

    def arguments(self, *further, tokens=40):
        return ("-m", DEMO, "--chat-template", self.template, "-n", str(tokens), "--system", "Verona.", *further)

    def chat(self, lines, *further, tokens=40):
        run = butterfly("chat", *self.arguments(*further, tokens=tokens), input=lines.encode())
        self.assertEqual(run.returncode, 0, run.stderr)
        return run


class OverAPipe(Folder):
    def test_answers_alone_are_on_stdout_the_same_as_those_of_generate(self):
        once = butterfly("generate", "--chat", *self.arguments("-p", FIRST, "--json"))
        self.assertEqual(once.returncode, 0, once.stderr)
        answer = json.loads(once.stdout)["message"]["content"]
        self.assertGreater(len(answer), 10)
        run = self.chat(FIRST + "\n")
        self.assertEqual(run.stdout.decode().rstrip("\n"), answer.rstrip("\n"))

    def test_a_cached_conversation_answers_with_the_bits_of_a_new_one(self):
        saved = self.path("saved.json")
        both = self.chat(f"{FIRST}\n/save {saved}\n{SECOND}\n")
        cached = [int(found) for found in re.findall(rb"(\d+) of them cached", both.stderr)]
        self.assertEqual(len(cached), 2)
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 40)
        anew = self.chat(f"/load {saved}\n{SECOND}\n")
        self.assertIn(b" 0 of them cached", anew.stderr)
        self.assertTrue(both.stdout.endswith(anew.stdout), (both.stdout, anew.stdout))
        self.assertEqual([message["role"] for message in self.messages("saved.json")],
                         ["system", "user", "assistant"])

    def test_sampling_and_nodes_change_nothing_of_this(self):
        options = ("--temp", "0.9", "--seed", "3")
        one = self.chat(f"{FIRST}\n{SECOND}\n", *options)
        for further in (("--nodes", "3"), ("--prefill-chunk", "7")):
            self.assertEqual(one.stdout, self.chat(f"{FIRST}\n{SECOND}\n", *options, *further).stdout, further)

    def test_messages_may_have_several_lines_and_reset_forgets(self):
        run = self.chat(f'"""\na\nb\n"""\n/save {self.path("one.json")}\n/reset\nc\\\nd\n/save {self.path("two.json")}\n')
        contents = [[message["content"] for message in self.messages(name)][:2]
                    for name in ("one.json", "two.json")]
        self.assertEqual(contents, [["Verona.", "a\nb"], ["Verona.", "c\nd"]], run.stderr)

    def test_mistakes_are_named_and_the_conversation_goes_on(self):
        run = self.chat("/nonsense\n/load /nowhere.json\n/save\nHello\n", tokens=5)
        for words in (b"/nonsense is no command", b"/nowhere.json", b"/save needs the name of a file"):
            self.assertIn(words, run.stderr)
        self.assertGreater(len(run.stdout), 3)

    def test_without_a_template_it_is_said_what_to_do(self):
        run = butterfly("chat", "-m", DEMO, input=b"Hello\n")
        self.assertEqual(run.returncode, 2)
        self.assertIn(b"--chat-template FILE", run.stderr)
        self.assertIn(b"butterfly generate", run.stderr)

    def test_render_prints_what_the_template_makes(self):
        conversation = self.path("conversation.json")
        with open(conversation, "w", encoding="utf-8") as file:
            json.dump([{"role": "user", "content": "Hé"}], file)
        run = butterfly("chat", "--chat-template", self.template, "--render", conversation)
        self.assertEqual((run.returncode, run.stdout.decode()), (0, "USER:\nHé\n\nJULIET:\n"), run.stderr)


class OverWorkers(Folder):
    def test_a_worker_killed_in_an_answer_is_a_pause_and_the_same_bytes(self):
        tokens = 200
        expected = self.chat(f"{FIRST}\n{SECOND}\n", tokens=tokens).stdout
        with Worker() as a, Worker() as b:
            running = subprocess.Popen([PROGRAM, "chat", *self.arguments(
                "--workers", f"{a.address},{b.address}", "--split", "uniform", tokens=tokens)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            running.stdin.write(f"{FIRST}\n{SECOND}\n".encode())
            running.stdin.close()
            first = running.stdout.read(len(expected) // 3)
            b.process.kill()
            rest = running.stdout.read()
            errors = running.stderr.read()
            self.assertEqual(running.wait(timeout=60), 0, errors)
            running.stdout.close()
            running.stderr.close()
        self.assertEqual(first + rest, expected, errors)
        self.assertIn(b.address.encode(), errors)


class AtATerminal(Folder):
    """A person at a pseudo-terminal; stdout is a pipe, to see what is an answer."""

    def start(self, *further, tokens):
        self.keys, other = pty.openpty()
        self.screen = b""
        self.program = subprocess.Popen([PROGRAM, "chat", *self.arguments(*further, tokens=tokens)], stdin=other,
                                        stderr=other, stdout=subprocess.PIPE, env=environment(TERM="xterm"),
                                        preexec_fn=lambda: (os.setsid(), __import__("fcntl").ioctl(0, 0x540E, 0)))
        os.close(other)
        self.addCleanup(self.stop)

    def stop(self):
        self.program.kill()
        self.program.wait()
        self.program.stdout.close()
        os.close(self.keys)

    def wait_for(self, words, seconds=240 if SANITIZED else 60):
        """Reads the screen until `words` are on it; gives what was before."""
        end = time.monotonic() + seconds
        while words not in self.screen:
            self.assertGreater(end - time.monotonic(), 0, (words, self.screen))
            if select.select([self.keys], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.keys, 65536)
                except OSError:  # the program closed its side
                    self.assertIn(words, self.screen)
        before, self.screen = self.screen.split(words, 1)
        return before

    def type(self, text):
        os.write(self.keys, text)

    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        self.start("--ignore-end", tokens=100_000)
        self.wait_for(b"> ")
        self.type(FIRST.encode() + b"\r")
        self.assertTrue(self.program.stdout.read(20))
        self.type(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.assertIsNone(self.program.poll())
        self.type(b"forgotten\x03/save " + self.path("said.json").encode() + b"\r")
        self.wait_for(b"saved 3 messages")
        self.wait_for(b"> ")
        self.type(b"\x04")
        self.assertEqual(self.program.wait(timeout=60), 0)
        self.assertEqual(self.messages("said.json")[1]["content"], FIRST)

    def test_ctrl_d_while_an_answer_comes_ends_after_it(self):
        self.start("--ignore-end", tokens=300)
        self.wait_for(b"> ")
        self.type(FIRST.encode() + b"\r")
        self.assertTrue(self.program.stdout.read(20))
        self.type(b"\x04")
        self.wait_for(b"tokens/s]")
        self.assertEqual(self.program.wait(timeout=60), 0)

    def test_the_history_comes_back_and_sigterm_ends(self):
        self.start(tokens=5)
        self.wait_for(b"> ")
        self.type("Grüße\r".encode())
        self.wait_for(b"tokens/s]")
        self.wait_for(b"> ")
        self.type(b"\x1b[A\r")
        self.wait_for(b"tokens/s]")
        self.type(b"/save " + self.path("said.json").encode() + b"\r")
        self.wait_for(b"saved 5 messages")
        self.assertEqual([m["content"] for m in self.messages("said.json") if m["role"] == "user"],
                         ["Grüße", "Grüße"])
        self.wait_for(b"> ")
        self.program.send_signal(signal.SIGTERM)
        self.assertEqual(self.program.wait(timeout=60), 130)


if __name__ == "__main__":
    unittest.main()
