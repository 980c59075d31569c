#!/usr/bin/env python3
"""Reads GGUF files that llama.cpp's own converter writes, and prints where they differ from Butterfly's own.

    python tools/compare_converter.py --llama-cpp LLAMA_CPP [NAME ...]

For each directory of tests/golden/families: LLAMA_CPP's converter writes a GGUF file (without a tokenizer), `butterfly
convert` reads it and writes it again, and what it wrote is compared, metadata and every byte of the weights, with what
it makes of the directory itself. Equal files have equal logits. Exits with 1 where one differs. LLAMA_CPP is a source
tree, such as vendor/llama.cpp of llama-cpp-python's source package; needs torch, transformers and numpy.
"""

import argparse
import importlib
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the converter expects of config.json, and newer versions of transformers do not write.
OLDER_KEYS = {"gpt2": {"n_ctx": 96}, "falcon": {"num_kv_heads": 1}, "falcon_grouped": {}, "falcon_two": {},
              "mpt": {"architectures": ["MPTForCausalLM"]}, "deepseek_v3": {"scoring_func": "sigmoid"},
              "gpt_neox": {"rotary_pct": 0.5}, "gpt_neox_serial": {"rotary_pct": 0.25},
              "gpt_neox_two": {"rotary_pct": 1.0}}
# What the converter takes from elsewhere than these directories have it, or cannot say.
WITHOUT_KEY = {"deepseek_v3": "llama.cpp's converter has no key for mscale"}
KNOWN = {"falcon": ["context_length"], "glm": ["context_length", "layer_norm_rms_epsilon"],
         "mistral": ["sliding_window"], "starcoder2": ["sliding_window"], "gpt_oss": ["yarn_truncate"]}


def of_family(table: dict, name: str):
    """The entry of the longest key that the name begins with, or is."""
    found = [key for key in table if name == key or name.startswith(key + "_")]
    return table[max(found, key=len)] if found else None


class Converter:
    """llama.cpp's, without vocabularies."""

    def __init__(self, tree: Path):
        sys.path[:0] = [str(tree), str(tree / "gguf-py")]
        if importlib.util.find_spec("sentencepiece") is None:  # imported, and not needed here
            module = types.ModuleType("sentencepiece")
            module.__spec__ = importlib.machinery.ModuleSpec("sentencepiece", None)
            module.SentencePieceProcessor = object
            sys.modules["sentencepiece"] = module
        self.gguf = importlib.import_module("gguf")
        self.base = importlib.import_module("conversion.base")
        for file in (tree / "conversion").glob("*.py"):
            importlib.import_module("conversion." + file.stem)
        self._without_vocabulary(self.base.ModelBase, set())

    def _without_vocabulary(self, model, seen: set):
        for kind in model.__subclasses__():
            if kind not in seen:
                seen.add(kind)
                kind.set_vocab = lambda self: self._set_vocab_none()
                self._without_vocabulary(kind, seen)

    def write(self, directory: Path, path: Path, older_keys: dict):
        name = self.base.ModelBase.load_hparams(directory, False)["architectures"][0]
        kind = self.base.ModelBase.from_model_architecture(name, model_type=self.base.ModelType.TEXT)
        model = kind(directory, self.gguf.LlamaFileType.ALL_F32, path)
        model.hparams.update(older_keys)  # transformers drops what it does not know
        model.write()

    def content(self, path: Path) -> dict:
        reader = self.gguf.GGUFReader(path)
        content = {key: field.contents() for key, field in reader.fields.items()
                   if not key.startswith(("GGUF", "general.", "tokenizer."))}
        for tensor in reader.tensors:
            content[tensor.name] = (tensor.tensor_type.name, [int(i) for i in tensor.shape], tensor.data.tobytes())
        return content


def rewritten(program: str, source: Path, path: Path) -> None:
    done = subprocess.run([program, "convert", source, path, "--type", "f32"], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"{'reading it' if source.is_file() else 'the directory'}: {done.stderr.strip()[-200:]}")


def compare(converter: Converter, directory: Path, folder: Path, program: str) -> tuple[str, bool]:
    """What is to be said, and whether the files are equal."""
    name, copy = directory.name, folder / directory.name
    if name in WITHOUT_KEY:
        raise ValueError(WITHOUT_KEY[name])
    shutil.copytree(directory, copy)
    config = json.loads((copy / "config.json").read_text())
    older_keys = of_family(OLDER_KEYS, name) or {}
    (copy / "config.json").write_text(json.dumps(config | older_keys))
    words = {f"t{i}": i for i in range(config["vocab_size"])}
    (copy / "tokenizer.json").write_text(json.dumps(
        {"model": {"type": "BPE", "vocab": words, "merges": []}, "added_tokens": []}))
    theirs, ours, again = folder / "theirs.gguf", folder / "ours.gguf", folder / "again.gguf"
    rewritten(program, directory, ours)
    try:
        converter.write(copy, theirs, older_keys)
    except Exception as error:  # whatever a converter of many models throws at a model of its tests' size
        raise ValueError(f"llama.cpp's converter: {type(error).__name__} {error}"[:160]) from None
    rewritten(program, theirs, again)
    a, b = converter.content(again), converter.content(ours)
    known = of_family(KNOWN, name) or []
    differing = [key for key in sorted(a | b) if a.get(key) != b.get(key) and not key.endswith(tuple(known))]
    return ", ".join(differing[:6]) or "the same", not differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--butterfly", default=str(ROOT / "build/release/bin/butterfly"))
    parser.add_argument("--families", type=Path, default=ROOT / "tests/golden/families")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    converter, good, not_compared = Converter(arguments.llama_cpp), True, []
    for directory in sorted(arguments.families.iterdir()):
        if arguments.names and directory.name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory(prefix="compare_converter_") as folder:
            try:
                said, same = compare(converter, directory, Path(folder), arguments.butterfly)
                good &= same
                print(f"{directory.name:<22} {'ok' if same else 'NO'}: {said}", flush=True)
            except ValueError as error:
                not_compared.append(directory.name)
                print(f"{directory.name:<22} {error}", flush=True)
    print(f"not compared: {', '.join(not_compared)}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
