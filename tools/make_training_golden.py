#!/usr/bin/env python3
"""Writes tests/golden/training_{adjacent,halves,gpt2}.{json,bin}: tiny models, their loss and gradients, and ten losses
of AdamW, computed by PyTorch (2.13.0, CPU, F32 weights, one thread).

    python tools/make_training_golden.py --out tests/golden

A .bin file is raw little-endian: tensors in F32 by canonical name (weights, and gradients as "grad.NAME"), and "tokens"
[batch, seq + 1] in I32, whose targets are the tokens that follow. Its .json names every tensor with shape and offset in
bytes, the configuration, "loss" (mean over the targets) and "losses" (on the same tokens, before each of ten updates:
AdamW, rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1 on matrices, gradients clipped to norm 1). Gradients and
loss are taken in F64 and rounded, so that their own error does not count.
"""

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

BATCH, SEQ, STEPS = 2, 17, 10


@dataclass(frozen=True)
class Model:
    """Field names and values are those of ModelConfig in src/butterfly/model/core/config.h."""

    architecture: str = "llama"
    norm: str = "rms"  # or "layer"
    norm_epsilon: float = 1e-5
    mlp: str = "gated"  # or "plain": GELU
    rope_pairs: str = "adjacent"  # or "halves" or "none"
    rope_base: float = 10000.0
    qkv_bias: bool = False
    biases: bool = False  # of the other matmuls and of norms
    tied_head: bool = True
    layers: int = 2
    model_dim: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ff_dim: int = 48
    vocab: int = 61
    context: int = 32


MODELS = {
    "adjacent": Model(),
    "halves": Model(architecture="qwen2", rope_pairs="halves", qkv_bias=True, tied_head=False, norm_epsilon=1e-6),
    "gpt2": Model(
        architecture="gpt2", norm="layer", mlp="plain", rope_pairs="none", qkv_bias=True, biases=True, kv_heads=4
    ),
}


def random_weights(model: Model, generator: torch.Generator) -> dict[str, torch.Tensor]:
    weights = {}

    def matrix(name: str, rows: int, cols: int, deviation: float = 0.15):
        weights[name] = torch.randn(rows, cols, generator=generator) * deviation

    def vector(name: str, size: int, mean: float = 0.0):
        weights[name] = mean + 0.1 * torch.randn(size, generator=generator)

    def linear(name: str, rows: int, cols: int, bias: bool):
        matrix(f"{name}.weight", rows, cols)
        if bias:
            vector(f"{name}.bias", rows)

    def norm(name: str):
        vector(f"{name}.weight", model.model_dim, 1.0)
        if model.biases:
            vector(f"{name}.bias", model.model_dim)

    matrix("token_embd.weight", model.vocab, model.model_dim)
    if model.rope_pairs == "none":
        matrix("position_embd.weight", model.context, model.model_dim)
    for layer in range(model.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm")
        linear(block + "attn_q", model.heads * model.head_dim, model.model_dim, model.qkv_bias)
        linear(block + "attn_k", model.kv_heads * model.head_dim, model.model_dim, model.qkv_bias)
        linear(block + "attn_v", model.kv_heads * model.head_dim, model.model_dim, model.qkv_bias)
        linear(block + "attn_output", model.model_dim, model.heads * model.head_dim, model.biases)
        norm(block + "ffn_norm")
        if model.mlp == "gated":
            linear(block + "ffn_gate", model.ff_dim, model.model_dim, model.biases)
        linear(block + "ffn_up", model.ff_dim, model.model_dim, model.biases)
        linear(block + "ffn_down", model.model_dim, model.ff_dim, model.biases)
    norm("output_norm")
    if not model.tied_head:
        matrix("output.weight", model.vocab, model.model_dim)
    return weights


def rotate(model: Model, x: torch.Tensor) -> torch.Tensor:
    """x: [batch, heads, seq, head_dim]."""
    if model.rope_pairs == "none":
        return x
    half = model.head_dim // 2
    frequencies = model.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if model.rope_pairs == "adjacent":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def normalise(model: Model, x: torch.Tensor, weights: dict, name: str) -> torch.Tensor:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if model.norm == "layer":
        return F.layer_norm(x, (model.model_dim,), weight, bias, model.norm_epsilon)
    return F.rms_norm(x, (model.model_dim,), weight, model.norm_epsilon)


def mean_loss(model: Model, weights: dict, tokens: torch.Tensor) -> torch.Tensor:
    """tokens: [batch, seq + 1]."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = weights["token_embd.weight"][inputs]
    if model.rope_pairs == "none":
        x = x + weights["position_embd.weight"][: inputs.shape[1]]
    for layer in range(model.layers):
        block = f"blk.{layer}."
        inner = normalise(model, x, weights, block + "attn_norm")

        def heads(name: str, count: int, inner: torch.Tensor = inner, block: str = block) -> torch.Tensor:
            return linear(inner, block + name).unflatten(-1, (count, model.head_dim)).transpose(1, 2)

        q = rotate(model, heads("attn_q", model.heads))
        k = rotate(model, heads("attn_k", model.kv_heads))
        v = heads("attn_v", model.kv_heads)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=1 / math.sqrt(model.head_dim), enable_gqa=True
        )
        x = x + linear(mixed.transpose(1, 2).flatten(-2), block + "attn_output")
        inner = normalise(model, x, weights, block + "ffn_norm")
        up = linear(inner, block + "ffn_up")
        if model.mlp == "gated":
            hidden = F.silu(linear(inner, block + "ffn_gate")) * up
        else:
            hidden = F.gelu(up, approximate="tanh")
        x = x + linear(hidden, block + "ffn_down")
    x = normalise(model, x, weights, "output_norm")
    logits = F.linear(x, weights["token_embd.weight" if model.tied_head else "output.weight"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def ten_losses(model: Model, start: dict, tokens: torch.Tensor) -> list[float]:
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    matrices = [value for value in weights.values() if value.dim() > 1]
    vectors = [value for value in weights.values() if value.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, weights, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def write_model(out: Path, name: str, model: Model, generator: torch.Generator):
    weights = random_weights(model, generator)
    tokens = torch.randint(0, model.vocab, (BATCH, SEQ + 1), generator=generator)
    exact = {key: value.double().requires_grad_() for key, value in weights.items()}
    loss = mean_loss(model, exact, tokens)
    loss.backward()
    content = {
        "config": asdict(model),
        "batch": BATCH,
        "seq": SEQ,
        "loss": loss.item(),
        "losses": ten_losses(model, weights, tokens),
        "tensors": [],
    }
    tensors = {"tokens": tokens.numpy().astype("<i4")}
    tensors |= {key: value.numpy().astype("<f4") for key, value in weights.items()}
    tensors |= {f"grad.{key}": value.grad.numpy().astype("<f4") for key, value in exact.items()}
    offset = 0
    with open(out / f"training_{name}.bin", "wb") as data:
        for key, tensor in tensors.items():
            data.write(np.ascontiguousarray(tensor).tobytes())
            content["tensors"].append({"name": key, "shape": list(tensor.shape), "offset": offset})
            offset += 4 * tensor.size
    (out / f"training_{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for the golden files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(5)
    for name, model in MODELS.items():
        write_model(arguments.out, name, model, generator)


if __name__ == "__main__":
    main()
