#!/usr/bin/env python3
"""Vectors a second beside PyTorch: a random model of BERT-base's shape, texts of 128 tokens, all sides in turn.

    python tools/bench_embeddings.py --butterfly build/release/bin/butterfly [--threads 1 2] [--rounds 5]
                                     [--types f32 q8_0]

Prints for each number of threads the median and the spread of each side, and our ratio to PyTorch's fp32 and bf16. The
vectors are compared with fp32's, too. PyTorch computes batches of --batch texts without padding, by transformers'
BertModel with its default attention; butterfly is timed by what it prints, without loading, as PyTorch is.
"""

import argparse
import collections
import copy
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TOKENS = 128


def byte_tokenizer() -> Tokenizer:
    """Each byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def texts(count: int) -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz "
    return ["".join(letters[(i * 7 + j * j * 3 + i * j) % 27] for j in range(TOKENS)) for i in range(count)]


def ours(program: str, model: Path, lines: str, threads: int, batch: int) -> tuple[float, list[list[float]]]:
    command = [program, "embed", "-m", model, "-t", threads, "--pooling", "mean", "--batch-tokens", batch * TOKENS]
    run = subprocess.run(list(map(str, command)), input=lines, capture_output=True, text=True, check=True)
    vectors = [[float(number) for number in line.split()] for line in run.stdout.splitlines()]
    return float(re.search(r"([\d.]+) tokens/s", run.stderr).group(1)) / TOKENS, vectors


def torch_vectors(model: torch.nn.Module, ids: torch.Tensor, batch: int) -> torch.Tensor:
    with torch.inference_mode():
        rows = [model(input_ids=part).last_hidden_state.mean(1) for part in ids.split(batch)]
    return torch.nn.functional.normalize(torch.cat(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--types", nargs="+", default=["f32", "q8_0"])
    arguments = parser.parse_args()
    torch.manual_seed(1)
    model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False).float().eval()
    models_of = {"PyTorch fp32": model, "PyTorch bf16": copy.deepcopy(model).bfloat16()}
    tokenizer = byte_tokenizer()
    sentences = texts(arguments.texts)
    ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(sentences)])
    assert ids.shape[1] == TOKENS, ids.shape
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        lines = "\n".join(sentences) + "\n"
        for kind in arguments.types:
            convert = [arguments.butterfly, "convert", folder, folder / f"{kind}.gguf", "--type", kind]
            subprocess.run(list(map(str, convert)), check=True, capture_output=True)
        expected = torch_vectors(model, ids, arguments.batch)
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            speeds: dict[str, list[float]] = collections.defaultdict(list)
            cosines: dict[str, float] = {}
            for _ in range(arguments.rounds):
                for kind in arguments.types:
                    speed, vectors = ours(arguments.butterfly, folder / f"{kind}.gguf", lines, threads, arguments.batch)
                    speeds[kind].append(speed)
                    cosines[kind] = (torch.tensor(vectors) * expected).sum(1).min().item()
                for side, peer in models_of.items():
                    begin = time.perf_counter()
                    vectors = torch_vectors(peer, ids, arguments.batch)
                    speeds[side].append(len(sentences) / (time.perf_counter() - begin))
                    cosines[side] = (vectors.float() * expected).sum(1).min().item()
            medians = {who: statistics.median(values) for who, values in speeds.items()}
            for who, values in speeds.items():
                print(f"{threads} threads, {who}: {medians[who]:.2f} texts/s ({min(values):.2f} to {max(values):.2f}), "
                      f"smallest cosine to fp32 {cosines[who]:.7f}")
            ratios = {f"{kind} / {side}": round(medians[kind] / medians[side], 3)
                      for kind in arguments.types for side in models_of}
            print(json.dumps({"threads": threads, "ratios": ratios}), flush=True)


if __name__ == "__main__":
    main()
