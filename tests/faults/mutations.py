#!/usr/bin/env python3
"""Mutated model files: whatever is in them, the program ends with 0, or with 2 and a sentence.

    mutations.py [--count N] [--seconds N] [--seed N] [--only N] [--quick] [--break]

--count mutations of GGUF files and as many of Hugging Face directories (sizes, names, types, offsets and values that are
changed on purpose, bytes and bits that are changed blindly, files that are cut or missing), each through `generate` (or
`bench model`, where there is no tokenizer; `embed`, or `fill`, with an encoder that has one), `convert`, `inspect` and
one of four other commands. Families of decoders, encoders, T5 and mixtures of experts are among them. A signal, another
status, more than 20 s or more than 2 GB of memory breaks the promise. Number N of a seed is always the same mutation;
--only runs that one and keeps its file.
"""

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import harness
import models

FAMILIES = os.path.join(models.ROOT, "tests/golden/families")
ENCODERS = os.path.join(models.ROOT, "tests/golden/encoders")
LIMIT_S, LIMIT_KB = 20, 2 * 2**20
ADDRESS_SPACE = 64 * 2**30  # what is only reserved is no memory
NUMBERS = (0, 1, 2, 3, 7, 8, 31, 33, 255, 256, 1000, 65535, 65536, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
           2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = (None, True, False, "", "x", "llama", "\u0000", "a" * 70000, [], {}, [[[[[]]]]], [1, 2, 3], [None], {"a": 1},
          0, 1, -1, 2, 3, 0.0, -0.0, 0.5, -1.5, 1e-45, 1e38, 1e39, 1e308, -1e308, 2**31 - 1, 2**31, 2**32, 2**53, 2**63,
          2**64, 10**30, 16384, 100000, 10**6, 10**9)
TYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "U8", "I8", "I64", "BOOL", "float32", "bfloat16")
FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e-45, 3e38, -3e38)


def gguf_values(data):
    """Offset and format of every number, length and count in the header of a GGUF file."""
    tensors, entries = struct.unpack_from("<QQ", data, 8)
    found, at = [(4, "I"), (8, "Q"), (16, "Q")], 24

    def string():
        nonlocal at
        found.append((at, "Q"))
        at += 8 + struct.unpack_from("<Q", data, at)[0]

    formats = {0: "B", 1: "B", 2: "H", 3: "H", 4: "I", 5: "I", 6: "f", 7: "B", 10: "Q", 11: "Q", 12: "d"}
    for _ in range(entries):
        string()
        (kind,) = struct.unpack_from("<I", data, at)
        found.append((at, "I"))
        at += 4
        if kind == models.ARRAY:
            element, count = struct.unpack_from("<IQ", data, at)
            found += [(at, "I"), (at + 4, "Q")]
            at += 12
            for i in range(count):
                if element == models.STRING:
                    at += 8 + struct.unpack_from("<Q", data, at)[0]
                else:
                    if i < 4:
                        found.append((at, formats[element]))
                    at += models.SIZES[element]
        elif kind == models.STRING:
            string()
        else:
            found.append((at, formats[kind]))
            at += models.SIZES[kind]
    for _ in range(tensors):
        string()
        (dims,) = struct.unpack_from("<I", data, at)
        found += [(at, "I"), *((at + 4 + 8 * i, "Q") for i in range(dims))]
        found += [(at + 4 + 8 * dims, "I"), (at + 8 + 8 * dims, "Q")]
        at += 16 + 8 * dims
    return found, at


def put_number(chance, data, at, kind):
    if kind in "fd":
        struct.pack_into("<" + kind, data, at, chance.choice(FLOATS))
        return
    size = struct.calcsize(kind)
    old = struct.unpack_from("<" + kind, data, at)[0]
    new = chance.choice((*NUMBERS, old + 1, old - 1, old * 2, old // 2, old ^ 1 << chance.randrange(8 * size)))
    struct.pack_into("<" + kind, data, at, new % 2**(8 * size))


def mutate_bytes(chance, data, end):
    """Blind changes of the first `end` bytes, which say what the others mean; sometimes of any."""
    end = len(data) if chance.random() < 0.2 else min(end, len(data))
    way = chance.randrange(6)
    at = chance.randrange(max(1, end))
    if way == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif way == 1:
        data[at:at + 8] = chance.randbytes(len(data[at:at + 8]))
    elif way == 2:
        del data[at:]
    elif way == 3:
        del data[at:at + chance.randrange(1, 64)]
    elif way == 4:
        data[at:at] = data[at:at + chance.randrange(1, 64)]
    else:
        other, size = chance.randrange(max(1, end)), chance.randrange(1, 32)
        data[at:at + size] = data[other:other + len(data[at:at + size])]
    return ("a bit", "eight bytes", "cut", "less", "more", "copied")[way] + f" at {at}"


def mutate_gguf(chance, source, path):
    with open(source, "rb") as file:
        data = bytearray(file.read())
    found, end = gguf_values(data)
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if chance.random() < 0.7:
            at, kind = chance.choice(found)
            if at + struct.calcsize(kind) <= len(data):
                put_number(chance, data, at, kind)
                said.append(f"number at {at}")
        else:
            said.append(mutate_bytes(chance, data, end))
    with open(path, "wb") as file:
        file.write(data)
    return ", ".join(said)


def places(value, path=()):
    """The paths to everything in a JSON document, at most some of each list."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:6]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutate_json(chance, document):
    path = chance.choice([path for path in places(document) if path])
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    old, way = holder[path[-1]], chance.random()
    if way < 0.15:
        del holder[path[-1]]
        return f"without {path}"
    if path[-1] in ("dtype", "torch_dtype") and way < 0.8:
        new = chance.choice(TYPES)
    elif isinstance(old, (int, float)) and not isinstance(old, bool) and way < 0.4:
        new = chance.choice((old + 1, old - 1, old * 2, -old, old / 2, old * 1000))
    elif isinstance(old, str) and way < 0.4:
        new = chance.choice((old[:-1], old + old, old.upper(), old.replace("0", "1")))
    elif isinstance(old, list) and way < 0.4:
        new = chance.choice((old + old, old[:-1], old[::-1], old * 50))
    else:
        new = chance.choice(VALUES)
    holder[path[-1]] = new
    return f"{path} = {str(new)[:40]}"


def mutate_safetensors(chance, path):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    (size,) = struct.unpack_from("<Q", data)
    if chance.random() < 0.6:
        header = json.loads(data[8:8 + size])
        said = mutate_json(chance, header)
        text = json.dumps(header).encode()
        data = bytearray(struct.pack("<Q", len(text))) + text + data[8 + size:]
    elif chance.random() < 0.3:
        put_number(chance, data, 0, "Q")
        said = "the header's length"
    else:
        said = mutate_bytes(chance, data, 8 + size)
    with open(path, "wb") as file:
        file.write(data)
    return f"{os.path.basename(path)}: {said}"


def mutate_text(chance, path):
    if os.path.basename(path).endswith(".json") and chance.random() < 0.8:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        said = mutate_json(chance, document)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
    else:
        with open(path, "rb") as file:
            data = bytearray(file.read())
        said = mutate_bytes(chance, data, len(data))
        with open(path, "wb") as file:
            file.write(data)
    return f"{os.path.basename(path)}: {said}"


def mutate_directory(chance, source, path):
    shutil.copytree(source, path)
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        files = [name for name in sorted(os.listdir(path)) if os.path.isfile(os.path.join(path, name))]
        names = [name for name in files if name != "logits.f32"]
        weights = [2 if name == "config.json" else 1 for name in names]
        if not names:
            break
        file = os.path.join(path, chance.choices(names, weights)[0])
        try:
            way = chance.random()
            if way < 0.03:
                os.remove(file)
                said.append(f"without {os.path.basename(file)}")
            elif way < 0.05:
                os.remove(file)
                os.mkdir(file)
                said.append(f"{os.path.basename(file)} is a folder")
            elif file.endswith(".safetensors"):
                said.append(mutate_safetensors(chance, file))
            else:
                said.append(mutate_text(chance, file))
        except (ValueError, struct.error, IndexError):
            pass  # a second mutation of what the first one broke
    return ", ".join(said)


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge(command):
    """The status, and what is wrong with how a command ended; nothing where it kept the promise."""
    with tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "BUTTERFLY_HOME": os.devnull, "BUTTERFLY_LOG": "error"}
        process = subprocess.Popen([harness.PROGRAM, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=errors, preexec_fn=limit, env=environment)
        end = time.monotonic() + LIMIT_S
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                process.kill()
                os.wait4(process.pid, 0)
                process.returncode = -9
                return -9, f"not done after {LIMIT_S} s"
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    invalid = command[0] == "train" and process.returncode == 3  # as on a machine whose peak was measured under load
    if process.returncode not in (0, 2) and not invalid:
        return process.returncode, f"status {process.returncode}: {text[-300:]}"
    if usage.ru_maxrss > LIMIT_KB:
        return process.returncode, f"{usage.ru_maxrss // 1024} MB of memory"
    if process.returncode == 2 and "butterfly: " not in text:
        return process.returncode, f"status 2 without a sentence: {text[-300:]}"
    return process.returncode, ""


def cut_in_two(source, path):
    """The directory with its tensors in two files and the index that says where they are."""
    shutil.copytree(source, path)
    whole = os.path.join(path, "model.safetensors")
    with open(whole, "rb") as file:
        data = file.read()
    os.remove(whole)
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    names, index = sorted(header), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file_name, at, entries, bodies = f"model-{number:05}-of-00002.safetensors", 0, {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            bodies += data[8 + size + begin:8 + size + end]
            entries[name] = {**header[name], "data_offsets": [at, at := at + end - begin]}
            index[name] = file_name
        text = json.dumps(entries).encode()
        with open(os.path.join(path, file_name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + bodies)
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": len(data) - 8 - size}, "weight_map": index}, file)


def letters():
    """A tokenizer of 60 tokens, which is what the encoders of tests/golden have: letters, alone and within words."""
    names = ["[PAD]", "</s>", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    alphabet = [chr(ord("a") + i) for i in range(26)]
    vocab = [*names, *alphabet, *("##" + letter for letter in alphabet), "'", ","]
    special = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, name in enumerate(names)]
    return {"version": "1.0", "added_tokens": special, "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None, "decoder": {"type": "WordPiece",
            "prefix": "##", "cleanup": True}, "model": {"type": "WordPiece", "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(vocab)}}}


def with_letters(name, folder):
    """An encoder of tests/golden with that tokenizer."""
    path = os.path.join(folder, name)
    shutil.copytree(os.path.join(ENCODERS, name), path)
    for other in ("hidden.f32", "logits.f32", "greedy.txt"):
        if os.path.exists(os.path.join(path, other)):
            os.remove(os.path.join(path, other))
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(letters(), file)
    return path


def sources(folder):
    """Paths of GGUF files and of Hugging Face directories, each with the command that its tokenizer is for: "generate",
    "embed", or none. The first two of both can generate, the next two directories are an encoder and a T5."""
    texts = os.path.join(folder, "text.txt")
    with open(texts, "w", encoding="utf-8") as file:
        file.write("To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 40)

    def made(*arguments):
        subprocess.run([harness.PROGRAM, *arguments], check=True, capture_output=True, timeout=120)

    plain, mixed = models.make(layers=2, width=64, ff=128, context=128), os.path.join(folder, "mixed.gguf")
    made("convert", models.eight_experts(), mixed, "--type", "q4_k_m")
    tokenizer, trained = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "trained")
    made("tokenize", "--train", texts, "--vocab", "280", "--out", tokenizer)
    made("train", "--model", "tinytransformer-tiny", "--data", texts, "--tokenizer", tokenizer, "--steps", "1", "--seq",
         "16", "--threads", "1", "--out", trained)
    in_two = os.path.join(folder, "in_two")
    cut_in_two(trained, in_two)
    ggufs = {plain: "generate", mixed: "generate"}
    directories = {trained: "generate", in_two: "generate", with_letters("bert", folder): "embed",
                   with_letters("t5", folder): "generate"}
    for source in sorted(os.path.join(place, name) for place in (FAMILIES, ENCODERS) for name in os.listdir(place)):
        directories[source] = ""
        path = os.path.join(folder, "of_" + os.path.basename(source) + ".gguf")
        done = subprocess.run([harness.PROGRAM, "convert", source, path], capture_output=True, timeout=60,
                              check=False)
        if done.returncode == 0:
            ggufs[path] = ""
    return ggufs, directories


def mutation(number, seed, files, folder):
    """(path, what its tokenizer is for, what was done)."""
    chance = random.Random(f"{seed} {number}")
    path = os.path.join(folder, f"mutant-{number}" + (".gguf" if number % 2 == 0 else ""))
    uses = files[number % 2]
    those = list(uses)
    known = [source for source in those if uses[source]]
    source = chance.choice(known) if chance.random() < 0.4 else chance.choice(those)
    change = mutate_gguf if number % 2 == 0 else mutate_directory
    return path, uses[source], f"{os.path.basename(source)}: {change(chance, source, path)}"


def commands(number, path, out, use):
    if use == "generate":
        yield "generate", "-m", path, "-p", "To be", "-n", "3", "-t", "1", "--ignore-end"
    elif use == "embed" and number // 2 % 2 == 0:
        yield "embed", "-m", path, "-t", "1", "To be", "or not to be"
    elif use == "embed":
        yield "fill", "-m", path, "-t", "1", "To [MASK]"
    else:
        yield "bench", "model", "-m", path, "-t", "1", "--rounds", "1", "--prefill", "24", "--decode", "2"
    yield "convert", path, out
    yield "inspect", path, "--tensors", "--json"
    text = os.path.join(os.path.dirname(out), "text.txt")
    others = (("tokenize", "-m", path, "-p", "To be"),
              ("perplexity", "-m", path, "-f", text, "--window", "64", "-t", "1", "-q"),
              ("plan", "-m", path, "--cluster", os.path.join(models.ROOT, "examples/clusters/equal.toml")),
              ("train", "--model", path, "--data", "synthetic:markov", "--steps", "1", "--seq", "8", "--threads", "1"))
    yield others[number // 2 % len(others)]


def unharmed(files, folder):
    """Commands that fail for models as they were made: then what follows would show nothing."""
    failed = []
    for uses in files:
        for path, use in uses.items():
            for number in range(0, 4, 2) if use == "embed" else range(1) if use else ():
                command = next(commands(number, path, os.path.join(folder, "out.gguf"), use))
                status, wrong = judge(command)
                if status != 0:
                    failed.append(f"{' '.join(command)}: status {status} {wrong}")
    for path in (next(iter(files[0])), list(files[1])[1]):
        for number in range(0, 8, 2):
            for command in commands(number, path, os.path.join(folder, "out.gguf"), "generate"):
                status, wrong = judge(command)
                if wrong or status == 2:
                    failed.append(f"{' '.join(command)}: status {status} {wrong}")
    return sorted(set(failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no mutation after these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--quick", action="store_true", help="20 seconds of them")
    parser.add_argument("--break", dest="wrong", action="store_true", help="takes status 2 for wrong: must fail")
    options = parser.parse_args()
    end = time.monotonic() + (20 if options.quick else options.seconds)
    broken = done = refused = 0
    kept = tempfile.gettempdir() if options.only is not None else None
    with tempfile.TemporaryDirectory() as folder:
        files = sources(folder)
        for failed in unharmed(files, folder) if options.only is None else ():
            broken += 1
            print(f"BROKEN before any mutation: {failed}")
        for number in range(2 * options.count) if options.only is None else [options.only]:
            if time.monotonic() > end:
                break
            path, use, said = mutation(number, options.seed, files, kept or folder)
            for command in commands(number, path, os.path.join(folder, "out.gguf"), use):
                status, wrong = judge(command)
                refused += status == 2
                if options.wrong and number == 0:
                    wrong = "taken for wrong"
                if wrong:
                    broken += 1
                    print(f"BROKEN: --seed {options.seed} --only {number} ({said}): {command[0]}: {wrong}", flush=True)
            done += 1
            if options.only is None:
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            else:
                print(f"{path}: {said}")
    print(f"{done} mutations of seed {options.seed}, {4 * done} commands, {refused} refused, {broken} promises broken")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
