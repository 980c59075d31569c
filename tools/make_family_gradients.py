#!/usr/bin/env python3
"""Writes tests/golden/training_families.json: the loss and the gradients of every parameter of tiny models of many
families, of which tests/golden/families has the weights (make_family_golden.py), by transformers' own classes.

    python tools/make_family_gradients.py --families tests/golden/families --out tests/golden/training_families.json

The objective is the mean cross-entropy over BATCH sequences of SEQ tokens, (7 i i + 3 i + 5 b) % vocab for i up to SEQ
and sequence b, each against the token that follows, plus AUX times transformers' load-balance loss where the model's
class has one. Of each gradient g, by canonical name and in the order of ModelConfig's rows, the file has its length and
SKETCHES inner products with vectors of random signs: the sign of element i in the k-th is bit k of i + 1 mixed by
splitmix64. Two gradients whose inner products agree agree: the mean square of their differences is expected to be the
square of the difference of the gradients. All is computed in F64, also what the classes cast to F32.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import torch
import transformers

SINGLE = torch.float32
BATCH, SEQ, AUX, SKETCHES = 2, 24, 0.02, 4
MODELS = (
    "llama_yarn mistral mistral_two qwen2_window qwen3 qwen3_two olmo2 olmo2_two smollm3 granite_two phi3 phi4_mini "
    "gemma gemma2 gemma2_two gemma3 gemma3_two glm glm4_two starcoder2 gpt_neox gpt_neox_serial phi2 falcon "
    "falcon_grouped cohere mixtral mixtral_two qwen2_moe qwen2_moe_dense qwen3_moe qwen3_moe_two olmoe olmoe_two "
    "granite_moe glm4_moe glm4_moe_two"
).split()

# Families whose rows of Q and K are stored for pairs (i, i + half) and computed as (2 i, 2 i + 1).
ADJACENT = {"llama", "mistral", "mixtral", "granite", "granitemoe", "smollm3"}
TOP = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.final_layernorm": "output_norm", "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
    "transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip
BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": "gate_up",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "attention.query_key_value": "qkv_by_head", "attention.dense": "attn_output",
    "self_attention.query_key_value": "qkv_by_head", "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "ln_attn": "attn_norm", "ln_mlp": "ffn_norm",
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_up_proj": "experts_in", "mlp.experts.down_proj": "experts_down",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.experts.gate_up_proj": "experts_in", "block_sparse_moe.experts.down_proj": "experts_down",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
OUTPUT_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
                "pre_feedforward_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
                "post_mlp_layernorm": "post_ffw_norm"}  # fmt: skip


def to_adjacent(gradient: np.ndarray, heads: int) -> np.ndarray:
    shape = gradient.shape
    halves = gradient.reshape(heads, 2, shape[0] // heads // 2, -1)
    return halves.transpose(0, 2, 1, 3).reshape(shape)


def split_qkv(config, gradient: np.ndarray, by_head: bool) -> dict:
    heads = config.num_attention_heads
    groups = getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None) or heads
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        groups = 1 if config.multi_query else heads
    if config.model_type == "gpt_neox":
        groups = heads
    size = gradient.shape[0] // (heads + 2 * groups)
    if not by_head:
        parts = np.split(gradient, [heads * size, (heads + groups) * size])
        return dict(zip(("attn_q", "attn_k", "attn_v"), parts))
    rows = gradient.reshape(groups, heads // groups + 2, size, -1)
    return {
        "attn_q": rows[:, :-2].reshape(heads * size, *gradient.shape[1:]),
        "attn_k": rows[:, -2].reshape(groups * size, *gradient.shape[1:]),
        "attn_v": rows[:, -1].reshape(groups * size, *gradient.shape[1:]),
    }


def canonical(config, name: str, gradient: np.ndarray) -> dict:
    """The gradient by canonical names."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        stem, kind = name, "weight"
    match = re.fullmatch(r"(?:model|gpt_neox|transformer)\.(?:layers|h)\.(\d+)\.(.*)", stem)
    if not match:
        return {f"{TOP[stem]}.{kind}": gradient}
    block = f"blk.{match[1]}."
    output_norms = config.model_type in ("gemma2", "gemma3_text", "olmo2", "glm4")
    part = BLOCK | OUTPUT_NORMS if output_norms else BLOCK
    if config.model_type == "glm4":
        part = part | {"post_attention_layernorm": "ffn_norm"}
    part = part[match[2]]
    if part.startswith("qkv"):
        split = split_qkv(config, gradient, part == "qkv_by_head")
    elif part in ("gate_up", "experts_in"):
        gate, up = np.split(gradient, 2, axis=gradient.ndim - 2)
        split = {"ffn_gate": gate, "ffn_up": up} if part == "gate_up" else {"ffn_gate_exps": gate, "ffn_up_exps": up}
    elif part == "experts_down":
        split = {"ffn_down_exps": gradient}
    else:
        split = {part: gradient}
    result = {}
    for key, value in split.items():
        if key.endswith("_exps"):
            result |= {f"{block}{key}.{e}.{kind}": value[e] for e in range(value.shape[0])}
            continue
        if key in ("attn_q", "attn_k") and config.model_type in ADJACENT:
            value = to_adjacent(value, config.num_attention_heads if key == "attn_q" else config.num_key_value_heads)
        result[f"{block}{key}.{kind}"] = value
    return result


def sketch(gradient: np.ndarray) -> list[float]:
    g = gradient.astype(np.float64).ravel()
    z = (np.arange(g.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    products = [float(g @ np.where((z >> np.uint64(k)) & np.uint64(1), 1.0, -1.0)) for k in range(SKETCHES)]
    return [float(f"{value:.8g}") for value in [float(np.linalg.norm(g)), *products]]


def gradients(folder: Path) -> dict:
    torch.float32 = torch.float = SINGLE
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, experts_implementation="eager"
    )
    model = model.double().train()
    torch.float32 = torch.float = torch.float64  # what norms, softmax and routers are cast to
    tokens = torch.tensor(
        [[(7 * i * i + 3 * i + 5 * b) % config.vocab_size for i in range(SEQ + 1)] for b in range(BATCH)]
    )
    balances = hasattr(config, "router_aux_loss_coef")
    output = model(tokens[:, :-1], use_cache=False, **({"output_router_logits": True} if balances else {}))
    loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
    balance = output.aux_loss if balances else torch.zeros((), dtype=torch.float64)
    (loss + AUX * balance).backward()
    tensors = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        tensors |= canonical(config, name, parameter.grad.numpy())
    return {
        "loss": loss.item(),
        "balance_loss": balance.item(),
        "gradients": {name: sketch(gradient) for name, gradient in tensors.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = {"batch": BATCH, "seq": SEQ, "aux": AUX, "models": {}}
    np.seterr(over="ignore")
    for name in MODELS:
        content["models"][name] = gradients(arguments.families / name)
        print(f"{name}: loss {content['models'][name]['loss']:.6f}", flush=True)
    text = json.dumps(content, separators=(",", ":"))
    arguments.out.write_text(re.sub(r'(\],|\{|":\{)(")', r"\1\n\2", text) + "\n")


if __name__ == "__main__":
    main()
