#!/usr/bin/env python3
"""Attacks: on one process (what it is started with, what happens to its files, what it is asked for), on clusters
(attacks_cluster.py), on nodes of them (attacks_nodes.py), on what these believe (attacks_files.py). The last line counts all.

    attacks.py [--only NAME] [--break]
"""

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

import harness
import models
from attack_kit import CASES, DEMO, PATIENCE_S, Skipped, case, environment, refused, run, run_cases


def train(*arguments, data="synthetic:markov", **options):
    return run("train", "--model", "tinytransformer-tiny", "--data", data, "--seq", 16, "--threads", 1, *arguments, **options)


class Relay:
    """Passes a connection on to a worker and keeps what the client sends."""

    def __init__(self, target):
        self.target, self.sent = target, bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            host, port = self.target.rsplit(":", 1)
            worker = socket.create_connection((host, int(port)))
            threading.Thread(target=self._pass, args=(client, worker, self.sent), daemon=True).start()
            threading.Thread(target=self._pass, args=(worker, client, None), daemon=True).start()

    @staticmethod
    def _pass(source, sink, kept):
        try:
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def close_standard():
    for number in (0, 1, 2):
        os.close(number)


@case
def closed_descriptors_and_a_log(folder):
    log = os.path.join(folder, "log")
    train("--steps", 3, "--log-file", log, "--log", "verbose", prepare=lambda: os.close(2))
    try:
        events = [json.loads(line)["event"] for line in open(log, encoding="utf-8")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the log is not the run's alone: {error}"
    return "" if events.count("step") == 3 else f"the log has {events}"


@case
def closed_descriptors_and_a_socket(folder):
    prompt = "a prompt that no one should read"
    with harness.Worker() as worker, Relay(worker.address) as relay:
        code, _, _ = run("generate", "-m", DEMO, "-p", prompt, "--echo", "-n", 20, "--workers", relay.address, prepare=close_standard)
        if prompt.encode() in relay.sent:
            return "the prompt crossed the network as text"
        if not relay.sent:
            return "nothing reached the worker"
        return "" if code == 2 else f"status {code} although nothing could be written"


def when_mapped(folder, change, *arguments):
    """Runs `generate` on a copy of a model, and changes the copy in the moment when it is mapped."""
    model = os.path.join(folder, "model.gguf")
    shutil.copyfile(models.quick_to_load(), model)
    os.utime(model, (1e9, 1e9))
    command = [harness.PROGRAM, "generate", "-m", model, "-p", "x", "-n", "4", "-q", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        end = time.monotonic() + PATIENCE_S
        mapped = False
        while not mapped and process.poll() is None and time.monotonic() < end:
            try:
                with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
                    mapped = model in maps.read()
            except OSError:
                break
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            change(model)
            process.send_signal(signal.SIGCONT)
        try:
            out, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        if not mapped:
            return 1, b"", "the program never mapped it"
        return process.returncode, out, errors.decode(errors="replace")


@case
def a_model_that_shrinks(folder):
    return refused(when_mapped(folder, lambda path: os.truncate(path, 100_000)), r"model\.gguf", "changed while it was in use")


@case
def a_model_that_is_overwritten(folder):
    def overwrite(path):
        with open(path, "r+b") as file:
            file.seek(-4096, os.SEEK_END)
            file.write(bytes(4096))
    return refused(when_mapped(folder, overwrite), r"model\.gguf", "changed while it was in use")


@case
def a_model_that_is_replaced_whole(folder):
    def replace(path):
        shutil.copyfile(DEMO, path + ".new")
        os.rename(path + ".new", path)
    code, _, errors = when_mapped(folder, replace)
    return "" if code == 0 else f"status {code}, and the file that was open never changed: {errors[-300:]}"


@case
def two_runs_in_one_folder(folder):
    saved = os.path.join(folder, "saved")
    command = [harness.PROGRAM, "train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--seq", "16", "--threads", "1", "--steps",
               "1000000", "--checkpoints", saved, "--save-every", "20", "--log", "verbose"]
    with harness.Process(command) as first:
        if not first.wait_for("saved as"):
            return f"the first run did not begin: {first.errors()[-300:]}"
        wrong = refused(train("--steps", 5, "--checkpoints", saved), re.escape(saved), rf"process {first.pid}\b")
        if wrong:
            return wrong
        first.signal(signal.SIGKILL)
        first.process.wait()
    code, _, errors = train("--steps", 1000000, "--resume", saved, "--checkpoints", saved, prepare=lambda: resource.setrlimit(resource.RLIMIT_CPU, (2, 2)))
    return f"the folder of a killed run stays locked: {errors[-300:]}" if "trains into this folder" in errors or code == 2 else ""


@case
def ranks_and_bits(_):
    hashes = set()
    for ranks in (1, 2, 4):
        code, out, errors = train("--steps", 3, "--ranks", ranks, "--deterministic", "--json", "--log", "silent")
        if code not in (0, 3):
            return f"{ranks} ranks: status {code}: {errors[-300:]}"
        hashes.add(json.loads(out)["weights_hash"])
    return "" if len(hashes) == 1 else f"{len(hashes)} different weights on 1, 2 and 4 ranks"


@case
def resuming_on_other_data(folder):
    saved = os.path.join(folder, "saved")
    code, _, errors = train("--steps", 4, "--checkpoints", saved, "--log", "silent")
    if code not in (0, 3):
        return f"status {code}: {errors[-300:]}"
    return refused(train("--steps", 4, "--resume", saved, data="synthetic:random"), "other tokens")


@case
def a_place_that_cannot_be_written(folder):
    wrong = refused(train("--steps", 100000, "--out", "/dev/null/model.gguf"), "/dev/null/model.gguf", "Not a directory")
    return wrong or refused(train("--steps", 100000, "--out", "/dev/null/model"), "/dev/null", "no directory")


@case
def a_link_beside_the_output(folder):
    text, out, precious = (os.path.join(folder, name) for name in ("text", "out.tokens", "precious"))
    for path in (text, precious):
        with open(path, "w", encoding="utf-8") as file:
            file.write("to be or not to be\n" * 50)
    os.symlink(precious, out + ".partial")
    code, _, errors = run("tokenize", "-m", DEMO, "--pack", text, "--out", out)
    if code != 0:
        return f"status {code}: {errors[-300:]}"
    if os.path.getsize(precious) != 950:
        return "the file behind the link was written"
    if not os.path.exists(out):
        return "there is no output"
    return "the output is a link" if os.path.islink(out) else ""


@case
def devices_as_outputs(folder):
    device, text = os.path.join(folder, "full.gguf"), os.path.join(folder, "text")
    with open(text, "w", encoding="utf-8") as file:
        file.write("to be or not to be\n" * 50)
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        raise Skipped("only root makes devices") from None
    for arguments in (("tokenize", "-m", DEMO, "--pack", text, "--out", device), ("tokenize", "--train", text, "--vocab", "300", "--out", device),
                      ("convert", DEMO, device)):
        wrong = refused(run(*arguments), "no regular file")
        if wrong:
            return f"{arguments[0]}: {wrong}"
        if not stat.S_ISCHR(os.lstat(device).st_mode):
            return f"{arguments[0]} replaced the device"
    return ""


@case
def seeds_out_of_range(folder):
    for seed in ("-1", str(2**64), "1e3", "1.5", ""):
        wrong = refused(run("generate", "-m", DEMO, "-p", "x", "-n", "1", "-q", f"--seed={seed}"), "")
        if wrong:
            return f"--seed={seed}: {wrong}"
        if seed and run("convert", "--random", "tinytransformer-tiny", os.path.join(folder, "x.gguf"), f"--seed={seed}")[0] != 2:
            return f"convert took --seed={seed}"
    texts = {seed: run("generate", "-m", DEMO, "-p", "x", "-n", "8", "-q", "--temp", "1", "--seed", seed)[:2] for seed in (0, 2**64 - 1)}
    return "" if all(code == 0 for code, _ in texts.values()) else f"{texts}"


def damaged(folder, value):
    """A model whose last weight, of its last norm, is `value`."""
    path = os.path.join(folder, "damaged.gguf")
    shutil.copyfile(models.make(layers=2, width=64, ff=128, context=256), path)
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(struct.pack("<f", value))
    return path


@case
def weights_that_are_no_numbers(folder):
    text = os.path.join(folder, "text")
    with open(text, "w", encoding="utf-8") as file:
        file.write("to be or not to be\n" * 50)
    for value in (float("nan"), float("-inf")):
        model = damaged(folder, value)
        for arguments in (("generate", "-p", "x", "-n", "4", "-q"), ("generate", "-p", "x", "-n", "4", "-q", "--nodes", "2"),
                          ("perplexity", "-f", text, "-q")):
            wrong = refused(run(arguments[0], "-m", model, *arguments[1:]), rf"output_norm\.weight has {value}")
            if wrong:
                return f"{value}, {arguments[0]}: {wrong}"
    return ""


@case
def little_memory(_):
    for megabytes in (80, 90, 100, 120, 130, 140, 150, 180, 220, 300):
        def limit(size=megabytes << 20):
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        for where in (("--threads", 4), ("--nodes", 3, "--threads", 2)):
            code, out, errors = run("generate", "-m", DEMO, "-p", "x", "-n", "2", "-q", *where, prepare=limit)
            if "error while loading shared libraries" in errors:
                continue
            if code not in (0, 2) or "terminate called" in errors or code == 0 and not out or code == 2 and "butterfly: " not in errors:
                return f"{megabytes} MB, {where}: status {code}: {errors[-300:]}"
    return ""


@case
def few_threads(_):
    for most in (1, 2, 3, 5):
        def limit(count=most):
            if os.getuid() == 0:  # which has no limit
                os.setgroups([])
                os.setgid(65534)
                resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
                os.setuid(65534)
            else:
                resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
        try:
            code, out, errors = run("generate", "-m", DEMO, "-p", "x", "-n", "2", "-q", "--nodes", 2, "--threads", 4, prepare=limit)
        except (PermissionError, subprocess.SubprocessError):
            raise Skipped("another user cannot run the program") from None
        if "cannot be opened: Permission denied" in errors:
            raise Skipped("another user cannot read the model")
        if code not in (0, 2) or "terminate called" in errors or code == 0 and not out:
            return f"{most} threads: status {code}: {errors[-300:]}"
    return ""


@case
def a_reader_that_goes_away(_):
    command = [harness.PROGRAM, "generate", "-m", models.quick_to_load(), "-p", "x", "-n", "2000", "--ignore-end", "-q"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read().decode()
        code = process.wait(PATIENCE_S)
    return "" if code == 141 and not errors else f"status {code}: {errors[-300:]}"


@case
def a_full_disk_behind_standard_output(_):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([harness.PROGRAM, "generate", "-m", DEMO, "-p", "x", "-n", "20", "-q"], stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, timeout=PATIENCE_S, env=environment(), check=False)
    return refused((done.returncode, b"", done.stderr.decode()), "standard output: No space left on device")


@case
def names_that_steer_the_terminal(folder):
    name = os.path.join(folder, "x\x1b[2J\nbutterfly: all is well\x07\u202e.gguf")
    for arguments in (("generate", "-m", name, "-p", "x"), ("inspect", name), ("convert", name, os.path.join(folder, "y.gguf"))):
        code, out, errors = run(*arguments)
        if code != 2:
            return f"{arguments[0]}: status {code}"
        found = [mark for mark in ("\x1b", "\x07", "\u202e", "\nbutterfly: all") if mark in errors + out.decode(errors="replace")]
        if found:
            return f"{arguments[0]}: {found[0]!r} reached the terminal"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--break", dest="wrong", action="store_true", help="attack a program that does nothing: every case has to notice")
    options = parser.parse_args()
    for others in ("attacks_cluster", "attacks_nodes", "attacks_files"):  # their cases come after these
        importlib.import_module(others)
    if options.wrong:
        harness.PROGRAM = "/bin/true"
        CASES[:] = [each for each in CASES if each.__name__ != "closed_descriptors_and_a_socket"]
    return 1 if run_cases(options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
