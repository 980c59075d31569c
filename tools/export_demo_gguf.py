#!/usr/bin/env python3
"""Turns the Hugging Face directory that train_demo_model.py wrote into one GGUF file (matrices F16, norms F32).

    python tools/export_demo_gguf.py --model /tmp/demo_model --out models/demo.gguf

GGUF's Llama rotates neighbouring rows of Q and K as pairs, Hugging Face row r with row r + head_dim / 2: the rows
of each head are reordered here, and every reader of Llama GGUF files relies on that order.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def adjacent_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * head_dim, n] from half-split to neighbouring pairs, head by head."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_config(writer: gguf.GGUFWriter, config: dict):
    writer.add_type("model")
    writer.add_name("Butterfly demo")
    writer.add_size_label("4.5M")
    writer.add_license("mit")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def write_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict, config: dict):
    ids = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(config["vocab_size"])):
        raise SystemExit(f"token ids are not 0 to {config['vocab_size'] - 1}, each once")
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i in special else normal for i in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    tokenizer = json.loads((arguments.model / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(arguments.out, "llama")
    write_config(writer, config)
    write_tokenizer(writer, tokenizer, config)
    for name, tensor in load_file(arguments.model / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            tensor = adjacent_pairs(tensor, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            tensor = adjacent_pairs(tensor, config["num_key_value_heads"])
        kind = np.float32 if tensor.ndim == 1 else np.float16
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor, dtype=kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{arguments.out}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
