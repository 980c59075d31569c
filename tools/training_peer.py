#!/usr/bin/env python3
"""The models of `butterfly train` by PyTorch, as a process that takes steps when it is told to. bench_training.py runs it.

    echo "steps 3" | PEER/bin/python tools/training_peer.py --model tinytransformer-small --batch 8 --seq 128 --threads 2

Same shapes as src/butterfly/model/core/config.cc, same data (random tokens, new ones each step), same step: mean cross-entropy,
gradients clipped to norm 1, AdamW with decay on matrices. What PyTorch is good at is used: query, key and value in one
matmul, gate and up in one, F.scaled_dot_product_attention, the fused AdamW. bf16 is autocast over fp32 weights.

Each line of the input is answered by a line of JSON: `steps N` with the seconds of each, `alone N` likewise without
exchanging gradients (--ranks), `matmuls` with the seconds of a step's matmuls alone.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

WARM_UP_STEPS = 3
PRODUCT_ROUNDS = 3


@dataclass(frozen=True)
class Shape:
    layers: int
    model_dim: int
    heads: int
    kv_heads: int
    ff_dim: int
    vocab: int
    gpt2: bool = False  # LayerNorm, biases, GELU, learned positions; else RMSNorm, SwiGLU, rotary ones. The head is tied.
    context: int = 1024

    @property
    def head_dim(self):
        return self.model_dim // self.heads

    @property
    def kv_dim(self):
        return self.kv_heads * self.head_dim


SHAPES = {
    "tinytransformer-tiny": Shape(4, 256, 8, 4, 512, 1000),
    "tinytransformer-small": Shape(8, 512, 8, 4, 2048, 1000),
    "tinytransformer-medium": Shape(12, 1024, 16, 8, 4096, 1000),
    "gpt2-124m": Shape(12, 768, 12, 12, 3072, 50257, gpt2=True),
}


def norm(shape):
    return nn.LayerNorm(shape.model_dim, eps=1e-5) if shape.gpt2 else nn.RMSNorm(shape.model_dim, eps=1e-6)


def rotate(x, cos, sin):
    """x: [batch, heads, seq, head_dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        inner = shape.ff_dim if shape.gpt2 else 2 * shape.ff_dim
        self.attention_norm, self.mlp_norm = norm(shape), norm(shape)
        self.qkv = nn.Linear(shape.model_dim, shape.model_dim + 2 * shape.kv_dim, bias=shape.gpt2)
        self.output = nn.Linear(shape.model_dim, shape.model_dim, bias=shape.gpt2)
        self.up = nn.Linear(shape.model_dim, inner, bias=shape.gpt2)
        self.down = nn.Linear(shape.ff_dim, shape.model_dim, bias=shape.gpt2)

    def attention(self, x, angles):
        shape = self.shape
        q, k, v = self.qkv(x).split((shape.model_dim, shape.kv_dim, shape.kv_dim), dim=-1)
        q, k, v = (part.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2) for part in (q, k, v))
        if angles is not None:
            cos, sin = (part.to(q.dtype) for part in angles)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)
        return self.output(mixed.transpose(1, 2).flatten(-2))

    def mlp(self, x):
        up = self.up(x)
        if self.shape.gpt2:
            return self.down(F.gelu(up, approximate="tanh"))
        gate, up = up.chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """tokens and targets [batch, seq] to the mean loss."""

    def __init__(self, shape, seq):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.model_dim)
        self.positions = nn.Embedding(shape.context, shape.model_dim) if shape.gpt2 else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        half = shape.head_dim // 2
        angles = torch.arange(seq)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        angles = None if self.shape.gpt2 else (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, angles)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def matmuls(shape):
    """(outputs, inputs, how often) of the matrices that each token goes through."""
    inner = shape.ff_dim if shape.gpt2 else 2 * shape.ff_dim
    return [(shape.model_dim + 2 * shape.kv_dim, shape.model_dim, shape.layers), (shape.model_dim, shape.model_dim, shape.layers),
            (inner, shape.model_dim, shape.layers), (shape.model_dim, shape.ff_dim, shape.layers), (shape.vocab, shape.model_dim, 1)]


def flops_per_token(shape, seq):
    """By the convention of `butterfly train`: 6 N + 6 L C T."""
    weights = sum(rows * cols * count for rows, cols, count in matmuls(shape))
    return 6 * weights + 6 * shape.layers * shape.model_dim * seq


def matmul_seconds(shape, tokens, dtype):
    """Of all matmuls of a step, forward and backward, each by itself: oneDNN's in bf16, MKL's in fp32."""
    total = 0.0
    for rows, cols, count in matmuls(shape):
        x, w = torch.randn(tokens, cols, dtype=dtype), torch.randn(rows, cols, dtype=dtype)
        y, dx, dw = torch.empty(tokens, rows, dtype=dtype), torch.empty_like(x), torch.empty_like(w)
        times = []
        for _ in range(PRODUCT_ROUNDS + 1):
            begin = time.perf_counter()
            torch.mm(x, w.t(), out=y)
            torch.mm(y, w, out=dx)
            torch.mm(y.t(), x, out=dw)
            times.append(time.perf_counter() - begin)
        total += count * statistics.median(times[1:])
    return total


def resident_peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


class Peer:
    def __init__(self, arguments):
        self.arguments, self.shape = arguments, SHAPES[arguments.model]
        torch.manual_seed(arguments.rank)
        self.model = Model(self.shape, arguments.seq)
        if arguments.sharding != "none":  # FSDP2: a unit for each block, and one of the rest
            mesh = torch.distributed.init_device_mesh("cpu", (arguments.ranks,))
            again = arguments.sharding == "full"
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=again)
            fully_shard(self.model, mesh=mesh, reshard_after_forward=again)
        matrices = [value for value in self.model.parameters() if value.dim() > 1]
        vectors = [value for value in self.model.parameters() if value.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                           lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.loss = self.model
        if arguments.ranks > 1 and arguments.sharding == "none":
            self.loss = nn.parallel.DistributedDataParallel(self.model)
        if arguments.compile:
            self.loss = torch.compile(self.loss)

    def step(self):
        arguments = self.arguments
        tokens = torch.randint(self.shape.vocab, (arguments.batch, arguments.seq + 1))
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = self.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def steps(self, count):
        times, losses = [], []
        for _ in range(count):
            begin = time.perf_counter()
            losses.append(self.step())
            times.append(time.perf_counter() - begin)
        if not all(math.isfinite(loss) for loss in losses):
            raise SystemExit(f"PyTorch's losses are {losses}")
        return {"step_s": times, "loss": losses[-1], "peak_bytes": resident_peak_bytes()}

    def answer(self, command):
        word, *count = command.split()
        if word == "matmuls":
            dtype = torch.bfloat16 if self.arguments.precision == "bf16" else torch.float32
            return {"matmuls_s": matmul_seconds(self.shape, self.arguments.batch * self.arguments.seq, dtype)}
        with self.loss.no_sync() if word == "alone" else contextlib.nullcontext():
            return self.steps(int(count[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences of a step, on this rank")
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--ranks", type=int, default=1, help="DistributedDataParallel over Gloo")
    parser.add_argument("--sharding", choices=("none", "grad", "full"), default="none", help="FSDP2: SHARD_GRAD_OP, FULL_SHARD")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--rendezvous", help="file that the ranks meet in")
    parser.add_argument("--warm-up", type=int, default=WARM_UP_STEPS, help="untimed steps")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{arguments.rendezvous}", rank=arguments.rank,
                                             world_size=arguments.ranks)
    peer = Peer(arguments)
    peer.steps(arguments.warm_up)
    hello = {"torch": torch.__version__, "flops_per_token": flops_per_token(peer.shape, arguments.seq)}
    print(json.dumps(hello), flush=True)
    for command in sys.stdin:
        print(json.dumps(peer.answer(command)), flush=True)
    if arguments.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
