#!/usr/bin/env python3
"""Writes tests/golden/block_{llama,qwen2,gpt2,sinks}.{json,bin} and block_rope.json: single transformer blocks and rotary
frequencies, computed in F64 by NumPy.

    python tools/make_block_golden.py --out tests/golden

A .bin file is raw little-endian F32; its .json names every tensor with shape and offset in bytes, and the block's
configuration. Tensors: "input" and "output" [tokens, model_dim] (token t is at position t), "after_attention" (the
residual stream between attention and MLP), and the weights by GGUF name, matrices as [outputs, inputs]. Weights are
multiples of 1/256, so F16 holds them exactly.
"""

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

TOKENS = 5


@dataclass(frozen=True)
class Block:
    """Field names and values are those of ModelConfig in src/butterfly/model/core/config.h."""

    norm: str = "rms"  # or "layer"
    norm_epsilon: float = 1e-5
    mlp: str = "gated"  # or "plain"
    activation: str = "silu"  # or "gelu_tanh"
    rope_pairs: str = "adjacent"  # or "halves" or "none"
    rope_base: float = 10000.0
    rope_dim: int = 16
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    sinks: bool = False  # a score for each query head that takes part in the softmax without a value
    window: int = 0  # keys that a query sees; 0: all
    model_dim: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ff_dim: int = 96


BLOCKS = {
    "llama": Block(),
    "qwen2": Block(rope_pairs="halves", rope_base=1e6, norm_epsilon=1e-6, qkv_bias=True),
    "gpt2": Block(
        norm="layer",
        mlp="plain",
        activation="gelu_tanh",
        rope_pairs="none",
        rope_dim=0,
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        kv_heads=4,
    ),
    # Attention of gpt-oss.
    "sinks": Block(rope_pairs="halves", qkv_bias=True, attention_output_bias=True, sinks=True, window=3),
}


def random_weights(block: Block, generator: np.random.Generator) -> dict[str, np.ndarray]:
    def grid(values: np.ndarray) -> np.ndarray:
        return np.round(values * 256) / 256

    weights = {}

    def linear(name: str, outputs: int, inputs: int, bias: bool):
        weights[f"{name}.weight"] = grid(generator.normal(0, inputs**-0.5, (outputs, inputs)))
        if bias:
            weights[f"{name}.bias"] = grid(generator.normal(0, 0.3, outputs))

    def norm(name: str):
        weights[f"{name}.weight"] = grid(1 + generator.normal(0, 0.2, block.model_dim))
        if block.norm_bias:
            weights[f"{name}.bias"] = grid(generator.normal(0, 0.2, block.model_dim))

    norm("attn_norm")
    linear("attn_q", block.heads * block.head_dim, block.model_dim, block.qkv_bias)
    linear("attn_k", block.kv_heads * block.head_dim, block.model_dim, block.qkv_bias)
    linear("attn_v", block.kv_heads * block.head_dim, block.model_dim, block.qkv_bias)
    linear("attn_output", block.model_dim, block.heads * block.head_dim, block.attention_output_bias)
    if block.sinks:
        weights["attn_sinks.weight"] = grid(generator.normal(0, 1, block.heads))
    norm("ffn_norm")
    if block.mlp == "gated":
        linear("ffn_gate", block.ff_dim, block.model_dim, block.mlp_bias)
    linear("ffn_up", block.ff_dim, block.model_dim, block.mlp_bias)
    linear("ffn_down", block.model_dim, block.ff_dim, block.mlp_bias)
    return weights


def normalise(block: Block, x: np.ndarray, weights: dict, name: str) -> np.ndarray:
    if block.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + block.norm_epsilon)
    return x * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def apply_linear(x: np.ndarray, weights: dict, name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def rotate(block: Block, x: np.ndarray) -> np.ndarray:
    """x: [tokens, heads, head_dim]; pair i of a head turns by position * base^(-2i / rope_dim)."""
    if block.rope_pairs == "none":
        return x
    frequencies = rope_frequencies(block.rope_base, block.rope_dim)
    turn = np.exp(1j * np.arange(len(x))[:, None] * frequencies)[:, None, :]
    if block.rope_pairs == "adjacent":
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape)
    half = block.rope_dim // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate((turned.real, turned.imag), axis=-1)


def attend(block: Block, q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
    """Causal softmax attention; query head h reads key-value head h * kv_heads / heads."""
    tokens = len(q)
    mixed = np.zeros_like(q)
    for head in range(block.heads):
        source = head * block.kv_heads // block.heads
        for token in range(tokens):
            first = max(0, token + 1 - block.window) if block.window else 0
            scores = k[first : token + 1, source] @ q[token, head] / math.sqrt(block.head_dim)
            total = np.exp(scores).sum() + (0 if sinks is None else np.exp(sinks[head]))
            mixed[token, head] = np.exp(scores) / total @ v[first : token + 1, source]
    return mixed.reshape(tokens, -1)


def activate(block: Block, x: np.ndarray) -> np.ndarray:
    if block.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def run(block: Block, x: np.ndarray, weights: dict) -> tuple[np.ndarray, np.ndarray]:
    """The residual stream after attention, and after the MLP."""
    inner = normalise(block, x, weights, "attn_norm")
    q = apply_linear(inner, weights, "attn_q").reshape(len(x), block.heads, block.head_dim)
    k = apply_linear(inner, weights, "attn_k").reshape(len(x), block.kv_heads, block.head_dim)
    v = apply_linear(inner, weights, "attn_v").reshape(len(x), block.kv_heads, block.head_dim)
    mixed = attend(block, rotate(block, q), rotate(block, k), v, weights.get("attn_sinks.weight"))
    middle = x + apply_linear(mixed, weights, "attn_output")
    inner = normalise(block, middle, weights, "ffn_norm")
    up = apply_linear(inner, weights, "ffn_up")
    if block.mlp == "gated":
        hidden = activate(block, apply_linear(inner, weights, "ffn_gate")) * up
    else:
        hidden = activate(block, up)
    return middle, middle + apply_linear(hidden, weights, "ffn_down")


def write_block(out: Path, name: str, block: Block, generator: np.random.Generator):
    weights = random_weights(block, generator)
    x = generator.normal(0, 1, (TOKENS, block.model_dim)).astype(np.float32).astype(np.float64)
    middle, result = run(block, x, weights)
    index, offset = [], 0
    with open(out / f"block_{name}.bin", "wb") as data:
        for tensor_name, tensor in {"input": x, "after_attention": middle, "output": result, **weights}.items():
            data.write(tensor.astype("<f4").tobytes())
            index.append({"name": tensor_name, "shape": list(tensor.shape), "offset": offset})
            offset += 4 * tensor.size
    content = {"config": asdict(block), "tokens": TOKENS, "tensors": index}
    (out / f"block_{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def rope_frequencies(base: float, dim: int) -> np.ndarray:
    """Radians per position of each of dim / 2 pairs (https://arxiv.org/abs/2104.09864)."""
    return base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


def llama3_frequencies(plain: np.ndarray, case: dict) -> np.ndarray:
    """Llama 3.1's rescaling: pairs with long waves slow down by factor, short ones stay, between them a ramp."""
    scaled = []
    for frequency in plain:
        turns = case["original_context"] * frequency / (2 * math.pi)
        ramp = (turns - case["low_freq_factor"]) / (case["high_freq_factor"] - case["low_freq_factor"])
        keep = min(1.0, max(0.0, ramp))
        scaled.append(frequency * (keep + (1 - keep) / case["factor"]))
    return np.array(scaled)


def write_rope(out: Path):
    llama3 = {"scaling": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}
    cases = [
        {"scaling": "none", "base": 10000.0, "dim": 64, "factor": 1.0},
        {"scaling": "none", "base": 1e6, "dim": 128, "factor": 1.0},
        {"scaling": "linear", "base": 10000.0, "dim": 64, "factor": 4.0},
        {**llama3, "base": 500000.0, "dim": 128, "factor": 8.0},
        {**llama3, "base": 500000.0, "dim": 64, "factor": 32.0},
    ]
    for case in cases:
        plain = rope_frequencies(case["base"], case["dim"])
        if case["scaling"] == "llama3":
            case["frequencies"] = llama3_frequencies(plain, case).tolist()
        else:
            case["frequencies"] = (plain / case["factor"]).tolist()
    (out / "block_rope.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for the golden files")
    arguments = parser.parse_args()
    generator = np.random.default_rng(20)
    for name, block in BLOCKS.items():
        write_block(arguments.out, name, block, generator)
    write_rope(arguments.out)


if __name__ == "__main__":
    main()
