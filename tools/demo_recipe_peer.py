#!/usr/bin/env python3
"""Trains the recipe of examples/training/demo.toml in PyTorch, to compare its validation loss with butterfly's.

    python3 tools/make_demo_model.py TEXT OUT
    python3 tools/demo_recipe_peer.py TEXT OUT/tokenizer.json

The same shape, tokens, numbers of steps and sequences, optimizer, schedule and evaluation, no dropout; other first
weights and another order of the sequences (--seed). Prints every evaluation; --out writes them as JSON lines."""

import argparse
import json
import math
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from demo_data import cut
from demo_llama import Llama, LlamaConfig

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="UTF-8 text file")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json that butterfly made")
    parser.add_argument("--recipe", type=Path, default=ROOT / "examples/training/demo.toml")
    parser.add_argument("--steps", type=int, help="instead of those of the recipe (its schedule shrinks with them)")
    parser.add_argument("--out", type=Path, help="file for the evaluations")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def read_recipe(arguments) -> dict:
    recipe = tomllib.loads(arguments.recipe.read_text())
    if arguments.steps:
        recipe["steps"] = arguments.steps
        recipe["schedule"]["warmup_steps"] = max(1, arguments.steps * 3 // 16)
    return recipe


def tokens_of(tokenizer: Tokenizer, paths) -> np.ndarray:
    """Each text begins with the begin token, which the tokenizer adds."""
    return np.concatenate([np.array(tokenizer.encode(path.read_text(encoding="utf-8")).ids) for path in paths])


def sequences(tokens: np.ndarray, seq: int, seed: int):
    """Windows of seq + 1 tokens that overlap by one: all of them once in an epoch, in a new order and at a new offset."""
    generator = np.random.default_rng(seed)
    while True:
        windows = (len(tokens) - 1) // seq - 1
        offset = int(generator.integers(seq))
        for window in generator.permutation(windows):
            begin = offset + window * seq
            yield torch.from_numpy(tokens[begin : begin + seq + 1])


@torch.no_grad()
def validation_loss(model: Llama, tokens: np.ndarray, seq: int, bf16: bool) -> float:
    total = 0.0
    for begin in range(0, len(tokens) - 1, seq):
        window = torch.from_numpy(tokens[begin : begin + seq + 1])[None]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(window[:, :-1])
        total += F.cross_entropy(logits.float()[0], window[0, 1:], reduction="sum").item()
    return total / (len(tokens) - 1)


def rate_of_step(step: int, recipe: dict) -> float:
    schedule, peak, steps = recipe["schedule"], recipe["optimizer"]["lr"], recipe["steps"]
    warmup, last = schedule["warmup_steps"], schedule["min_lr_ratio"]
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    return peak * (last + (1 - last) * (1 + math.cos(math.pi * progress)) / 2)


def make_optimizer(model: Llama, settings: dict):
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": settings["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(settings["beta1"], settings["beta2"]), eps=1e-8)


def train(model: Llama, recipe: dict, tokens: np.ndarray, held_out: np.ndarray, arguments):
    optimizer = make_optimizer(model, recipe["optimizer"])
    bf16, seq = recipe["precision"] == "bf16", recipe["seq"]
    source = sequences(tokens, seq, arguments.seed)
    evaluations = []
    for step in range(recipe["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = rate_of_step(step, recipe)
        ids = torch.stack([next(source) for _ in range(recipe["global_batch"])])
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["optimizer"]["max_grad_norm"])
        optimizer.step()
        if (step + 1) % recipe["evaluate_every"] == 0 or step + 1 == recipe["steps"]:
            evaluations.append((step + 1, validation_loss(model, held_out, seq, bf16)))
            print(f"step {step + 1}: training {loss.item():.4f}, validation {evaluations[-1][1]:.4f}", flush=True)
    return evaluations


def main():
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    recipe, tokenizer = read_recipe(arguments), Tokenizer.from_file(str(arguments.tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        parts, validation = cut(arguments.text, Path(folder))
        tokens, held_out = tokens_of(tokenizer, parts), tokens_of(tokenizer, [validation])
    print(f"{len(tokens)} tokens to train on, {len(held_out)} to validate on", flush=True)
    evaluations = train(Llama(LlamaConfig()), recipe, tokens, held_out, arguments)
    best = min(evaluations, key=lambda evaluation: evaluation[1])
    print(f"PyTorch {torch.__version__}: validation loss {evaluations[-1][1]:.4f} at the end, best {best[1]:.4f} at step {best[0]}")
    if arguments.out:
        arguments.out.write_text("".join(json.dumps({"step": s, "validation_loss": v}) + "\n" for s, v in evaluations))


if __name__ == "__main__":
    main()
