#!/usr/bin/env python3
"""Writes the reference outputs of models/demo.gguf: tests/golden/demo_greedy.json, demo_logits.f32, demo_<name>.txt.

    python tools/make_model_golden.py --model models/demo.gguf --out tests/golden

Everything is computed in F64 from the file's F16 weights, without a KV cache, by the plain PyTorch model of
demo_llama.py. demo_greedy.json names each prompt, its ids, the greedy ids that follow and the smallest difference
between the best and the second logit on the way: an implementation whose logits are closer than half of that finds
the same ids. demo_<name>.txt is the text of the greedy ids. demo_logits.f32 holds, in F32 little-endian, the logits
[tokens, vocab] after each token of the prompt "logits_prompt".
"""

import argparse
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from demo_llama import Llama, LlamaConfig

NEW_TOKENS = 64
PROMPTS = {
    "empty": "",
    "romeo": "ROMEO:\n",
    "citizen": "First Citizen:\nBefore we proceed any further, hear me speak.\n\n",
}
LOGITS_PROMPT = "KING RICHARD III:\nNow is the winter of our discontent made glorious"
HUGGING_FACE_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    def __init__(self, path: Path):
        self.reader = gguf.GGUFReader(path)

    def value(self, key: str):
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=len(self.value("tokenizer.ggml.tokens")),
            hidden_size=self.value("llama.embedding_length"),
            intermediate_size=self.value("llama.feed_forward_length"),
            num_hidden_layers=self.value("llama.block_count"),
            num_attention_heads=self.value("llama.attention.head_count"),
            num_key_value_heads=self.value("llama.attention.head_count_kv"),
            max_position_embeddings=self.value("llama.context_length"),
            rms_norm_eps=self.value("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self.value("llama.rope.freq_base"),
        )

    def model(self) -> Llama:
        config = self.config()
        state = {}
        for tensor in self.reader.tensors:
            name = tensor.name.removesuffix(".weight")
            prefix = ""
            if name.startswith("blk."):
                _, layer, name = name.split(".")
                prefix = f"model.layers.{layer}."
            values = np.array(tensor.data, dtype=np.float64)
            if name in ("attn_q", "attn_k"):
                values = half_split_pairs(values, config.head_dim)
            state[f"{prefix}{HUGGING_FACE_NAMES[name]}.weight"] = torch.from_numpy(values)
        model = Llama(config).double().eval()
        model.load_state_dict(state)
        return model

    def tokenizer(self) -> Tokenizer:
        tokens, types = self.value("tokenizer.ggml.tokens"), self.value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self.value("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        control = [token for token, kind in zip(tokens, types) if kind == gguf.TokenType.CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
        return tokenizer


def half_split_pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes the order of neighbouring pairs that GGUF files have: rows 2i, 2i + 1 become i, i + head_dim / 2."""
    heads = rows.shape[0] // head_dim
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


@torch.no_grad()
def greedy(model: Llama, prompt: list[int], count: int) -> tuple[list[int], float]:
    """`count` ids, each the most likely one, and the smallest lead of a chosen id over the second best."""
    ids, lead = list(prompt), float("inf")
    for _ in range(count):
        best = model(torch.tensor([ids]))[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], lead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file of the demo model")
    parser.add_argument("--out", type=Path, required=True, help="directory for the golden files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = GgufFile(arguments.model)
    model, tokenizer, begin = file.model(), file.tokenizer(), file.value("tokenizer.ggml.bos_token_id")

    def ids_of(text: str) -> list[int]:
        return [begin] + tokenizer.encode(text).ids

    cases = []
    for name, text in PROMPTS.items():
        prompt = ids_of(text)
        ids, lead = greedy(model, prompt, NEW_TOKENS)
        (arguments.out / f"demo_{name}.txt").write_text(tokenizer.decode(ids, skip_special_tokens=False))
        cases.append({"name": name, "prompt": text, "prompt_ids": prompt, "greedy_ids": ids, "smallest_lead": lead})
        print(f"{name}: smallest lead {lead:.4f}\n{tokenizer.decode(ids)}\n")
    prompt = ids_of(LOGITS_PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([prompt]))[0].numpy()
    logits.astype("<f4").tofile(arguments.out / "demo_logits.f32")
    golden = {
        "model_sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest(),
        "greedy": cases,
        "logits_prompt": LOGITS_PROMPT,
        "logits_prompt_ids": prompt,
        "logits_shape": list(logits.shape),
        "mean_loss_of_logits_prompt": mean_loss(logits, prompt),
    }
    (arguments.out / "demo_greedy.json").write_text(json.dumps(golden, indent=1) + "\n")


def mean_loss(logits: np.ndarray, ids: list[int]) -> float:
    """Nats per token of ids[1:], each predicted from the ids before it."""
    shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_probability[np.arange(len(ids) - 1), ids[1:]].mean())


if __name__ == "__main__":
    main()
