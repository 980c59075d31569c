"""Attacks on what a node believes: its clock, and the files of a model. Run by attacks.py."""

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import harness
import models
import wall_clock
from attack_kit import DEMO, case, environment, must, refused, run
from attacks_cluster import library, must_write
from harness import Generation, Process, Worker, reference

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) {
  char text[32] = {0};
  const char* path = getenv("ATTACK_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return 0;
  if (read(file, text, sizeof(text) - 1) < 0) text[0] = 0;
  close(file);
  return atol(text);
}
""" + wall_clock.SHIM
DAY = 86400
YEAR = 365 * DAY


class Clock:
    """The wall clock of programs that are started with `deceived`."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "clock")
        self.deceived = {"LD_PRELOAD": library(folder, "clock", CLOCK), "ATTACK_CLOCK": self.path}
        self.jump(0)

    def jump(self, seconds):
        with open(self.path + ".new", "w", encoding="ascii") as file:
            file.write(str(seconds))
        os.rename(self.path + ".new", self.path)

    def run(self, *arguments):
        done = subprocess.run([harness.PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
                              env={**environment(), **self.deceived})
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")


@case
def a_clock_that_jumps(folder):
    """By hours and years under runs with credentials: what runs goes on, and what is begun says why it is refused."""
    clock, secret = Clock(folder), os.path.join(folder, "cluster")
    must(clock.run("cluster", "init", secret)[0] == 0, "no credentials were made")
    options = ("--credentials", secret)
    with Worker(*options, **clock.deceived) as a, Worker(*options, **clock.deceived) as b:
        with Generation([a, b], tokens=450, options=options, **clock.deceived) as both:
            for seconds in (3600, -3600, 2 * YEAR, -2 * YEAR, 0):
                both.wait_for_bytes(len(both.text()) + 60)
                clock.jump(seconds)
            must_write(both, 450)
            must(not [epoch for epoch in both.epochs() if epoch[1] > 1], f"a jump of the clock cost an epoch: {both.epochs()}")
        for seconds, words in ((2 * YEAR, "expired"), (-2 * YEAR, "not (yet|until)|behind|before")):
            clock.jump(seconds)
            wrong = refused(clock.run("generate", "-m", DEMO, "-p", "x", "-n", "2", *options, "--workers", a.address), words)
            if wrong:
                return f"a clock that is wrong by {seconds} s: {wrong}"
        clock.jump(0)
        with Generation([a, b], tokens=50, options=options, **clock.deceived) as after:
            must_write(after, 50)
    return ""


@case
def a_clock_that_jumps_beside_the_ledger(folder):
    """A revoked certificate stays revoked, whatever the clock said meanwhile."""
    clock, secret, node = Clock(folder), os.path.join(folder, "cluster"), os.path.join(folder, "node")
    must(clock.run("cluster", "init", secret)[0] == 0, "no credentials were made")
    with Process([harness.PROGRAM, "cluster", "admit", "--credentials", secret, "--listen", "127.0.0.1:0"], **clock.deceived) as door:
        found = door.wait_for(r"^admitting on (\S+)")
        must(found, f"nobody is admitted: {door.errors()}")
        for name in ("worker-a", "worker-b"):
            token = clock.run("cluster", "token", "--credentials", secret)[1].decode().strip()
            code, _, errors = clock.run("cluster", "enroll", found[1][1], token, "--name", name, "--credentials", f"{node}-{name}")
            must(code == 0, f"{name} was not enrolled: {errors}")
    must(clock.run("cluster", "revoke", "worker-a", "--credentials", secret)[0] == 0, "nothing was revoked")
    clock.jump(3 * YEAR)
    clock.run("cluster", "revoke", "worker-b", "--credentials", secret)  # writes the ledger and the list
    clock.jump(0)
    shown = clock.run("cluster", "list", "--credentials", secret)[1].decode()
    must(re.search(r"worker-a.*revoked|revoked.*worker-a", shown), f"worker-a is not known as revoked any more: {shown}")
    code, _, errors = clock.run("cluster", "revoke", "worker-b", "--credentials", secret)
    with open(os.path.join(secret, "node.pem"), encoding="ascii"), Worker("--credentials", secret, **clock.deceived) as worker:
        outcome = clock.run("cluster", "status", worker.address, "--credentials", f"{node}-worker-a")
        must(outcome[0] != 0, f"a revoked node is let in again: {outcome[1].decode()}")
    return ""


def sharded(folder, source):
    """The same model in two files; the path of the first."""
    with open(source, "rb") as file:
        data = file.read()
    tensors, _ = struct.unpack_from("<QQ", data, 8)
    entries = models._entries(data)
    place = 24 + sum(8 + len(key.encode()) + 4 + len(value) for key, _, value in entries)
    found = []
    for _ in range(tensors):
        begin = place
        place += 8 + struct.unpack_from("<Q", data, place)[0]
        (rank,) = struct.unpack_from("<I", data, place)
        place += 4 + 8 * rank + 4
        found.append((data[begin:place], struct.unpack_from("<Q", data, place)[0]))
        place += 8
    start = -(-place // models.ALIGNMENT) * models.ALIGNMENT
    ends = [offset for _, offset in found[1:]] + [len(data) - start]
    paths = [os.path.join(folder, f"model-{i}-of-00002.gguf") for i in ("00001", "00002")]
    for number, (path, part) in enumerate(zip(paths, (found[:tensors // 2], found[tensors // 2:]))):
        split = [("split.no", 2, struct.pack("<H", number)), ("split.count", 2, struct.pack("<H", 2)), ("split.tensors.count", 5, struct.pack("<i", tensors))]
        kept = (entries if number == 0 else []) + split
        listing = b"GGUF" + struct.pack("<IQQ", 3, len(part), len(kept))
        listing += b"".join(models._string(key) + struct.pack("<I", kind) + value for key, kind, value in kept)
        base = part[0][1]
        listing += b"".join(head + struct.pack("<Q", offset - base) for head, offset in part)
        last = ends[found.index(part[-1])]
        with open(path, "wb") as out:
            out.write(listing + bytes(-len(listing) % models.ALIGNMENT) + data[start + base:start + last])
        os.utime(path, (1e9, 1e9))
    return paths


def overwrite(path):
    with open(path, "r+b") as file:
        file.seek(-65536, os.SEEK_END)
        file.write(bytes(65536))


def stopped_when_mapped(process, path, change):
    """Changes a file in the moment when a process has it mapped; whether there was such a moment."""
    end = time.monotonic() + 30
    while process.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
            if path in maps.read():
                process.signal(signal.SIGSTOP)
                change(path)
                process.signal(signal.SIGCONT)
                return True
    return False


def safetensors_shards(folder):
    """A directory with a model in two files, and these."""
    text, tokenizer, model = (os.path.join(folder, name) for name in ("text", "tokenizer.json", "directory"))
    with open(text, "w", encoding="utf-8") as file:
        file.write("to be or not to be, that is the question\n" * 400)
    must(run("tokenize", "--train", text, "--vocab", 300, "--out", tokenizer)[0] == 0, "no tokenizer was made")
    code, _, errors = run("train", "--model", "tinytransformer-small", "--data", text, "--tokenizer", tokenizer, "--seq", 16, "--batch", 1, "--steps", 1,
                          "--out", model, "--log", "silent")
    must(os.path.isdir(model), f"no model was made: status {code}: {errors[-300:]}")
    whole = os.path.join(model, "model.safetensors")
    with open(whole, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"][0])
    paths, places = [], {}
    for number, part in enumerate((names[:len(names) // 2], names[len(names) // 2:])):
        file_name = f"model-{number + 1:05}-of-00002.safetensors"
        base = header[part[0]]["data_offsets"][0]
        own = {name: {**header[name], "data_offsets": [at - base for at in header[name]["data_offsets"]]} for name in part}
        listing = json.dumps(own).encode()
        listing += b" " * (-len(listing) % 8)
        paths.append(os.path.join(model, file_name))
        with open(paths[-1], "wb") as out:
            out.write(struct.pack("<Q", len(listing)) + listing + data[8 + size + base:8 + size + header[part[-1]]["data_offsets"][1]])
        os.utime(paths[-1], (1e9, 1e9))
        places.update({name: file_name for name in part})
    os.remove(whole)
    with open(os.path.join(model, "model.safetensors.index.json"), "w", encoding="ascii") as index:
        json.dump({"metadata": {"total_size": len(data) - 8 - size}, "weight_map": places}, index)
    return model, paths


@case
def any_file_of_a_model_that_is_overwritten(folder):
    """The second file of a model in two, in both formats."""
    parts = sharded(folder, models.quick_to_load())
    must(run("generate", "-m", parts[0], "-p", "x", "-n", "4", "-q")[1] == run("generate", "-m", models.quick_to_load(), "-p", "x", "-n", "4", "-q")[1] != b"",
         "a model in two files is another one")
    directory, shards = safetensors_shards(folder)
    must(run("generate", "-m", directory, "-p", "x", "-n", "4", "-q")[0] == 0, "the directory is no model")
    for model, files in ((parts[0], parts), (directory, shards)):
        for path in files:
            with Process([harness.PROGRAM, "generate", "-m", model, "-p", "x", "-n", 4, "-q"]) as one:
                must(stopped_when_mapped(one, path, overwrite), f"{path} was never mapped: {one.errors()}")
                wrong = refused((one.wait(), b"", one.errors()), re.escape(os.path.basename(path)), "changed while it was in use")
                if wrong:
                    return f"{os.path.basename(path)}: {wrong}"
            os.utime(path, (1e9, 1e9))
    return ""


@case
def a_workers_copy_that_is_overwritten(folder):
    """While it is loaded, and between two runs: the text is that of the coordinator's model."""
    source = models.quick_to_load()
    original = os.path.join(folder, "original")
    os.mkdir(original)
    parts = sharded(original, source)
    text = reference(tokens=20, model=parts[0])
    for number, name in enumerate(("the first file", "the second file")):
        for moment in ("while it is loaded", "between two runs"):
            with tempfile.TemporaryDirectory(dir=folder) as copies:
                own = [os.path.join(copies, os.path.basename(path)) for path in parts]
                for path, copy in zip(parts, own):
                    shutil.copyfile(path, copy)
                    os.utime(copy, (1e9, 1e9))
                with Worker("--model-dir", copies) as worker:
                    if moment == "between two runs":
                        with Generation([worker], tokens=20, model=parts[0]) as first:
                            must(first.wait() == 0 and first.text() == text, f"with its own copy: {first.errors()[-400:]}")
                        must(worker.wait_for("weights of .* come from /", 1), "the worker did not use its own copy")
                        overwrite(own[number])
                        os.utime(own[number], (1e9, 1e9))
                        worker.kill()
                        again = Worker("--model-dir", copies)
                    else:
                        again = contextlib.nullcontext(worker)
                    with again as serving, Generation([serving], tokens=20, model=parts[0]) as second:
                        if moment == "while it is loaded":
                            must(stopped_when_mapped(serving, own[number], overwrite), f"the worker never mapped {own[number]}")
                        code = second.wait()
                        must(code == 0 and second.text() == text, f"{name}, {moment}: exit code {code}, another text: {second.errors()[-500:]} {serving.errors()[-500:]}")
    return ""
