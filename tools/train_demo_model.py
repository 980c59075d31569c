#!/usr/bin/env python3
"""Trains the small Llama-style demo model of models/demo.gguf from one plain-text file, on a CPU.

    python tools/train_demo_model.py --data path/to/tinyshakespeare.txt --out /tmp/demo_model

writes a Hugging Face directory (config.json, model.safetensors in F16, tokenizer.json, ...) that holds the weights
with the lowest validation loss so far, and training_log.csv. tools/export_demo_gguf.py turns that into a GGUF file.
The first 90 % of the text train the tokenizer and the model; the last 10 % only measure the validation loss.
"""

import argparse
import csv
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from demo_llama import Llama, LlamaConfig

END_OF_TEXT = "<|endoftext|>"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="UTF-8 text file")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; created if missing")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 512 tokens in a step")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="peak of the cosine schedule")
    parser.add_argument("--warmup", type=int, default=150, help="steps of linear warm-up")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--float32", action="store_true", help="compute in F32 instead of BF16 (slower with AMX)")
    return parser.parse_args()


def train_tokenizer(text: str, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))]
    )
    if tokenizer.get_vocab_size() != vocabulary:
        raise SystemExit(f"the text yields only {tokenizer.get_vocab_size()} of {vocabulary} tokens")
    return tokenizer


class Windows:
    """Draws training sequences: half begin with the begin token and a speech, half anywhere in the text."""

    def __init__(self, tokenizer: Tokenizer, text: str, context: int, seed: int):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        self.ids = np.array(encoding.ids, dtype=np.int64)
        self.context = context
        self.generator = np.random.default_rng(seed)
        starts = [i for i, (begin, _) in enumerate(encoding.offsets) if begin == 0 or text[begin - 2 : begin] == "\n\n"]
        self.starts = [i for i in starts if i + context <= len(self.ids)]
        self.begin = tokenizer.token_to_id(END_OF_TEXT)

    def draw(self, batch: int) -> torch.Tensor:
        """[batch, context + 1] ids: inputs are all but the last column, targets all but the first."""
        rows = []
        for row in range(batch):
            if row % 2 == 0:
                at = self.generator.choice(self.starts)
                rows.append(np.concatenate(([self.begin], self.ids[at : at + self.context])))
            else:
                at = self.generator.integers(len(self.ids) - self.context)
                rows.append(self.ids[at : at + self.context + 1])
        return torch.from_numpy(np.stack(rows))


@torch.no_grad()
def mean_loss(model: Llama, ids: np.ndarray, begin: int, context: int) -> float:
    """Nats per token; every id is predicted once, in windows of `context` tokens that each start with `begin`."""
    model.eval()
    total = 0.0
    for at in range(0, len(ids), context):
        window = torch.from_numpy(np.concatenate(([begin], ids[at : at + context])))[None]
        logits = model(window[:, :-1]).float()
        total += F.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
    model.train()
    return total / len(ids)


def save_model(model: Llama, tokenizer: Tokenizer, out: Path):
    begin = tokenizer.token_to_id(END_OF_TEXT)
    tensors = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "config.json", model.config.to_hugging_face("float16", begin))
    write_json(out / "generation_config.json", {"bos_token_id": begin, "eos_token_id": begin})
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "add_bos_token": True,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.config.max_position_embeddings,
        },
    )


def write_json(path: Path, value: dict):
    path.write_text(json.dumps(value, indent=2) + "\n")


def learning_rate(step: int, arguments) -> float:
    if step < arguments.warmup:
        return arguments.learning_rate * (step + 1) / arguments.warmup
    progress = (step - arguments.warmup) / max(1, arguments.steps - arguments.warmup)
    return arguments.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model: Llama, weight_decay: float):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))


def train(model: Llama, tokenizer: Tokenizer, windows: Windows, validation: np.ndarray, arguments):
    optimizer = make_optimizer(model, arguments.weight_decay)
    context, best, running, started = model.config.max_position_embeddings, math.inf, [], time.monotonic()
    with open(arguments.out / "training_log.csv", "w", newline="") as log:
        writer = csv.writer(log)
        writer.writerow(["step", "train_loss", "validation_loss", "learning_rate", "seconds"])
        for step in range(arguments.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, arguments)
            ids = windows.draw(arguments.batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=not arguments.float32):
                logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running.append(loss.item())
            if (step + 1) % arguments.evaluate_every and step + 1 != arguments.steps:
                continue
            held_out = mean_loss(model, validation, windows.begin, context)
            if held_out < best:
                best = held_out
                save_model(model, tokenizer, arguments.out)
            row = [step + 1, np.mean(running), held_out, learning_rate(step, arguments), time.monotonic() - started]
            writer.writerow([row[0], f"{row[1]:.4f}", f"{row[2]:.4f}", f"{row[3]:.2e}", f"{row[4]:.0f}"])
            log.flush()
            print("step {} train {:.4f} validation {:.4f} rate {:.2e} time {:.0f} s".format(*row), flush=True)
            running.clear()


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    config = LlamaConfig()
    text = arguments.data.read_text(encoding="utf-8")
    split = len(text) * 9 // 10
    tokenizer = train_tokenizer(text[:split], config.vocab_size)
    windows = Windows(tokenizer, text[:split], config.max_position_embeddings, arguments.seed)
    validation = np.array(tokenizer.encode(text[split:], add_special_tokens=False).ids, dtype=np.int64)
    model = Llama(config, arguments.dropout)
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, {len(windows.ids)} training tokens,"
        f" {len(validation)} validation tokens ({len(text) - split} characters)",
        flush=True,
    )
    train(model, tokenizer, windows, validation, arguments)


if __name__ == "__main__":
    main()
