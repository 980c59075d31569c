#!/usr/bin/env python3
"""Holds Butterfly's GGUF files against llama.cpp; prints a table and exits with 1 where a limit is passed.

    python tools/compare_llamacpp.py types -m models/demo.gguf --text TEXT [TYPE ...]
    python tools/compare_llamacpp.py types --random wide --text TEXT          # and odd, moe: shapes of random weights
    python tools/compare_llamacpp.py families [NAME ...]                      # directories of tests/golden/families

types: the model in each type, quantised by both. Both programs read llama.cpp's file (mean negative log likelihood of
the text, limit 1 %; the same tokens), every tensor decodes to the bits of the gguf package, and llama.cpp reads
Butterfly's file, whose tensors have the types that llama.cpp chose and whose likelihood is at most 0.5 % worse (of
random weights: farther from that of the exact weights).
families: llama.cpp reads what `butterfly convert` made of a Hugging Face directory; its logits are those of PyTorch
(limit 1e-2 of the largest).

Needs llama-cpp-python, gguf and numpy (tools/requirements.txt).
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp as api
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 512
NLL_LIMIT, OWN_FILE_LIMIT, LOGIT_LIMIT = 0.01, 0.005, 1e-2
FTYPES = {
    "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13,
    "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
    "f16": 1, "mxfp4": 38,
}
# layers, width, heads, kv heads, MLP width, experts
RANDOM = {"wide": (8, 512, 8, 2, 1024, 0), "odd": (4, 320, 5, 5, 864, 0), "moe": (2, 256, 4, 2, 256, 8)}


class Peer:
    """llama.cpp with one file."""

    def __init__(self, path: Path, threads: int, betas: tuple = (-1.0, -1.0), context: int = WINDOW):
        LOG.clear()
        options = api.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load it: {first_error()}")
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        settings = api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = context
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = 0
        settings.yarn_beta_fast, settings.yarn_beta_slow = betas
        settings.type_k = settings.type_v = 0  # f32
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise ValueError(f"llama.cpp cannot run it: {first_error()}")

    def logits(self, ids: list[int]) -> np.ndarray:
        """[tokens, vocab] after each token of a fresh sequence."""
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        batch = api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        status = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if status != 0:
            raise ValueError(f"llama_decode returned {status}, expected 0")
        rows = api.llama_get_logits(self.context)
        return np.ctypeslib.as_array(rows, (len(ids), self.vocab)).astype(np.float64)

    def tokens(self, text: str) -> list[int]:
        data = text.encode()
        ids = (api.llama_token * (len(data) + 8))()
        count = api.llama_tokenize(api.llama_model_get_vocab(self.model), data, len(data), ids, len(ids), False, True)
        return list(ids[:count])

    def nll(self, ids: list[int], bos: int | None) -> float:
        """Mean over the windows that `butterfly perplexity` makes of the same tokens."""
        fresh = WINDOW - (bos is not None)
        total = count = 0
        for begin in range(0, len(ids), fresh):
            window = ([bos] if bos is not None else []) + ids[begin:begin + fresh]
            if len(window) < 2:
                break
            logits = self.logits(window)[:-1]
            top = logits.max(axis=1, keepdims=True)
            log_total = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
            total += float((log_total - logits[np.arange(len(window) - 1), window[1:]]).sum())
            count += len(window) - 1
        return total / count

    def close(self):
        api.llama_free(self.context)
        api.llama_model_free(self.model)


LOG: list[str] = []


def first_error() -> str:
    return LOG[0] if LOG else "no reason given"


@api.llama_log_callback
def keep_log(level, text, _):
    line = text.decode(errors="replace").strip()
    if level >= 4 and line:  # errors
        LOG.append(line)


def run(arguments, *words, **more) -> str:
    done = subprocess.run([arguments.butterfly, *map(str, words)], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise ValueError(f"butterfly {words[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def quantise(source: Path, out: Path, name: str, threads: int):
    options = api.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = FTYPES[name], threads, True
    LOG.clear()
    status = api.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(options))
    if status != 0:
        raise ValueError(f"llama.cpp's quantiser returned {status}: {first_error()}")


def tensors(path: Path) -> dict:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def floats(tensor) -> np.ndarray:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(-1)


def other_bits(stored: Path, decoded: Path) -> int:
    """Tensors whose floats differ from those that the gguf package decodes."""
    ours = tensors(decoded)
    return sum(floats(tensor).tobytes() != floats(ours[name]).tobytes() for name, tensor in tensors(stored).items())


def other_types(ours: Path, theirs: Path) -> list[str]:
    a, b = tensors(ours), tensors(theirs)
    return [f"{name} {a[name].tensor_type.name}/{b[name].tensor_type.name}" for name in b
            if name not in a or a[name].tensor_type != b[name].tensor_type]


def random_model(shape: str, like: Path, path: Path):
    """A Llama (or Mixtral) with the tokenizer of `like` and random weights, F32."""
    layers, width, heads, kv_heads, ff, experts = RANDOM[shape]
    reader, writer = gguf.GGUFReader(like), gguf.GGUFWriter(path, "llama")
    vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub)
    writer.add_block_count(layers)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocab)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    rng = np.random.default_rng(7)

    def add(name, *extents):
        writer.add_tensor(name, (rng.standard_normal(extents) * 1.3 / extents[-1] ** 0.5).astype(np.float32))

    add("token_embd.weight", vocab, width)
    add("output.weight", vocab, width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, np.float32))
        for name, rows in (("q", width), ("k", width // heads * kv_heads), ("v", width // heads * kv_heads),
                           ("output", width)):
            add(f"blk.{i}.attn_{name}.weight", rows, width)
        planes, suffix = ((experts,), "_exps") if experts else ((), "")
        add(f"blk.{i}.ffn_gate{suffix}.weight", *planes, ff, width)
        add(f"blk.{i}.ffn_up{suffix}.weight", *planes, ff, width)
        add(f"blk.{i}.ffn_down{suffix}.weight", *planes, width, ff)
        if experts:
            add(f"blk.{i}.ffn_gate_inp.weight", experts, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare_type(name: str, source: Path, ids: list[int], bos: int | None, exact: float | None, arguments,
                 folder: Path) -> bool:
    """exact: of random weights, the likelihood before quantisation; being far from it on either side is as bad."""
    theirs, ours, decoded = folder / "theirs.gguf", folder / "ours.gguf", folder / "decoded.gguf"
    quantise(source, theirs, name, arguments.threads)
    run(arguments, "convert", source, ours, "--type", name)
    run(arguments, "convert", theirs, decoded, "--type", "f32")
    bits = other_bits(theirs, decoded)
    types = other_types(ours, theirs)
    found = {}
    for label, path in (("theirs", theirs), ("ours", ours)):
        peer = Peer(path, arguments.threads)
        found[label] = peer.nll(ids, bos)
        peer.close()
    here = json.loads(run(arguments, "perplexity", "-m", theirs, "-f", folder / "text", "--json", "-q", "-t",
                          arguments.threads, "--kv-type", "f32"))["mean_nll"]
    difference, own = here / found["theirs"] - 1, found["ours"] / found["theirs"] - 1
    if exact is not None:
        own = (abs(found["ours"] - exact) - abs(found["theirs"] - exact)) / exact
    good = abs(difference) <= NLL_LIMIT and own <= OWN_FILE_LIMIT and bits == 0 and not types
    print(f"{name:<8} {here:9.4f} {found['theirs']:9.4f} {100 * difference:+8.3f}% {found['ours']:9.4f} "
          f"{100 * own:+8.3f}% {bits:5} {len(types):6}  {'ok' if good else 'NO'}", flush=True)
    for line in types[:4]:
        print(f"         {line}")
    return good


def compare_types(arguments) -> bool:
    with tempfile.TemporaryDirectory(prefix="compare_llamacpp_") as name:
        folder = Path(name)
        source = arguments.model
        if arguments.random:
            source = folder / "random.gguf"
            random_model(arguments.random, arguments.model, source)
        text = Path(arguments.text).read_text(encoding="utf-8")
        (folder / "text").write_text(text[len(text) * 9 // 10:][:arguments.characters], encoding="utf-8")
        ids = [int(word) for word in run(arguments, "tokenize", "-m", source, "-f", folder / "text", "--ids",
                                         "--no-bos").split()]
        fields = gguf.GGUFReader(source).fields
        with_bos = "tokenizer.ggml.add_bos_token" in fields and fields["tokenizer.ggml.add_bos_token"].contents()
        bos = fields["tokenizer.ggml.bos_token_id"].contents() if with_bos else None
        peer = Peer(source, arguments.threads)
        exact = peer.nll(ids, bos) if arguments.random else None
        good = peer.tokens((folder / "text").read_text(encoding="utf-8")) == ids
        peer.close()
        if not good:
            print("llama.cpp has other tokens for this text  NO")
        print(f"{arguments.random or source}: nats per token of {len(ids)} tokens; bits: tensors that decode otherwise"
              "; types: tensors of another type")
        print(f"{'type':<8} {'here':>9} {'llama.cpp':>9} {'':>9} {'our file':>9} {'':>9} {'bits':>5} {'types':>6}")
        for kind in arguments.names or FTYPES:
            try:
                good &= compare_type(kind, source, ids, bos, exact, arguments, folder)
            except ValueError as error:
                print(f"{kind:<8} {error}  NO", flush=True)
                good = False
    return good


def rope_of(config: dict) -> dict:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def betas_of(config: dict) -> tuple:
    """llama.cpp reads these keys for few architectures; for all it takes them as settings."""
    rope = rope_of(config)
    return float(rope.get("beta_fast") or -1.0), float(rope.get("beta_slow") or -1.0)


def limit_of(config: dict) -> tuple[str, int | None]:
    """What llama.cpp cannot do about such a model, and how many tokens it can be compared for nevertheless."""
    kind = config["model_type"]
    if kind in ("mistral", "phi3", "starcoder2") and config.get("sliding_window"):
        return "llama.cpp has no window here", config["sliding_window"]
    if rope_of(config).get("truncate") is False:
        return "llama.cpp rounds yarn's borders", 0
    if kind == "deepseek_v2" and (config.get("n_group") or 1) > 1:
        return "llama.cpp weighs groups by their two best experts", 0
    return "", None


def compare_family(directory: Path, path: Path, arguments) -> bool:
    run(arguments, "convert", directory, path)
    config = json.loads((directory / "config.json").read_text())
    vocab = config["vocab_size"]
    expected = np.fromfile(directory / "logits.f32", "<f4").reshape(-1, vocab)
    reason, tokens = limit_of(config)
    if tokens == 0:
        raise ValueError(reason)
    expected = expected[:tokens]
    peer = Peer(path, arguments.threads, betas_of(config))
    logits = peer.logits([(7 * i * i + 3 * i) % vocab for i in range(len(expected))])
    peer.close()
    largest = np.abs(expected).max()
    difference = np.abs(logits - expected).max() / largest
    good = bool(difference <= LOGIT_LIMIT)
    note = f" of {tokens} tokens: {reason}" if reason else ""
    print(f"{directory.name:<22} {largest:9.3f} {difference:10.2e}  {'ok' if good else 'NO'}{note}", flush=True)
    return good


def compare_families(arguments) -> bool:
    good, unknown = True, []
    print(f"{'family':<22} {'largest':>9} {'difference':>10}  verdict")
    with tempfile.TemporaryDirectory(prefix="compare_llamacpp_") as name:
        for directory in sorted(Path(arguments.families).iterdir()):
            if arguments.names and directory.name not in arguments.names:
                continue
            try:
                good &= compare_family(directory, Path(name) / "family.gguf", arguments)
            except ValueError as error:
                print(f"{directory.name:<22} {error}", flush=True)
                unknown.append(directory.name)
    if unknown:
        print(f"not compared: {', '.join(unknown)}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", default=str(ROOT / "build/release/bin/butterfly"))
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    types = commands.add_parser("types")
    types.add_argument("-m", "--model", type=Path, default=ROOT / "models/demo.gguf", help="F16 or F32")
    types.add_argument("--random", choices=RANDOM, help="random weights of this shape, the model's tokenizer")
    types.add_argument("--text", required=True, help="UTF-8; its last tenth is read")
    types.add_argument("--characters", type=int, default=12000)
    types.add_argument("names", nargs="*", default=[])
    families = commands.add_parser("families")
    families.add_argument("--families", default=ROOT / "tests/golden/families")
    families.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    api.llama_log_set(keep_log, None)
    api.llama_backend_init()
    good = compare_types(arguments) if arguments.command == "types" else compare_families(arguments)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
