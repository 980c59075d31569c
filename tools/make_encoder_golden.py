#!/usr/bin/env python3
"""Writes tests/golden/encoders/NAME/: tiny random encoders, and encoders with decoders, of `transformers`, and what they
make of a text.

    python tools/make_encoder_golden.py --out tests/golden/encoders [NAME ...]

Beside config.json and model.safetensors, little-endian floats in fp32:
    hidden.f32   [TOKENS, width] of the encoder, after its last norm where it has one
    logits.f32   of the masked-LM head, [TOKENS, vocab]; of a decoder, [DECODED, vocab]
    greedy.txt   of a decoder: ids that follow its first token, the likeliest each time
The text is 2 + (7 * i * i + 3 * i) % (vocab - 2) for i from 0, what the decoder reads is its first token and
2 + (5 * i * i + i) % (vocab - 2). Texts are longer than windows and than the distances that buckets tell apart.
"""

import argparse
import json
from pathlib import Path

import safetensors.torch
import torch
import transformers

VOCAB = 60
TOKENS = 37
DECODED = 20
GREEDY = 16

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
      "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}

# Class of the model, class of its configuration, values.
MODELS = {
    "bert": ("BertForMaskedLM", "BertConfig", SIZES),
    # Published base models have neither a prefix nor a head; the first of them called the weights of norms otherwise.
    "bert_base": ("BertModel", "BertConfig", SIZES | {"hidden_act": "gelu_new", "type_vocab_size": 1}),
    "bert_legacy": ("BertForMaskedLM", "BertConfig", SIZES | {"hidden_act": "relu"}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SIZES | {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm_roberta": ("XLMRobertaModel", "XLMRobertaConfig", SIZES | {"type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
                    "max_position_embeddings": 64}),
    "electra": ("ElectraModel", "ElectraConfig", SIZES | {"embedding_size": 16}),
    # Its head has GELU all the same.
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", SIZES | {"hidden_act": "relu"}),
    "albert": ("AlbertForMaskedLM", "AlbertConfig",
               SIZES | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig",
                   SIZES | {"num_hidden_layers": 4, "local_attention": 10, "pad_token_id": 0, "bos_token_id": 1,
                            "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}),
    "nomic": ("NomicBertForMaskedLM", "NomicBertConfig", SIZES),
    "nomic_own": ("NomicBertModel", "NomicBertConfig", SIZES),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "flan_t5": ("T5ForConditionalGeneration", "T5Config",
                T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config",
             T5 | {"decoder_start_token_id": 3, "relative_attention_num_buckets": 7}),
    "t5_encoder": ("T5EncoderModel", "T5Config", T5),
}


def widen(model: torch.nn.Module) -> None:
    """Norms and biases differ from their first values, and matrices are large enough for scores that differ."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_(0.0, 1.0)
            elif name.endswith("Attention.q.weight"):
                # Scores are not divided by anything: the weights make up for it.
                parameter.normal_(0.0, 1.3 / (parameter.shape[-1] * 12) ** 0.5)
            elif parameter.dim() >= 2:
                parameter.normal_(0.0, 1.3 / parameter.shape[-1] ** 0.5)
            elif "norm" in name.lower():
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(0.0, 0.3)


def text(tokens: int, vocab: int, a: int, b: int) -> list[int]:
    return [2 + (a * i * i + b * i) % (vocab - 2) for i in range(tokens)]


def floats(path: Path, values: torch.Tensor) -> None:
    path.write_bytes(values.detach().numpy().astype("<f4").tobytes())


def rename(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    renamed = change({name: tensor.clone() for name, tensor in tensors.items()})
    safetensors.torch.save_file(renamed, path, metadata={"format": "pt"})


def to_gamma_and_beta(tensors: dict) -> dict:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


def nomic_config(values: dict) -> dict:
    return {
        "model_type": "nomic_bert",
        "n_embd": values["hidden_size"],
        "n_layer": values["num_hidden_layers"],
        "n_head": values["num_attention_heads"],
        "n_inner": values["intermediate_size"],
        "n_positions": values["max_position_embeddings"],
        "vocab_size": values["vocab_size"],
        "type_vocab_size": 2,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "use_rms_norm": False,
    }


def write_decoder(model: torch.nn.Module, ids: torch.Tensor, folder: Path) -> None:
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    decoded = torch.tensor([[start, *text(DECODED - 1, VOCAB, 5, 1)]])
    floats(folder / "logits.f32", model(input_ids=ids, decoder_input_ids=decoded).logits[0].float())
    greedy = [start]
    for _ in range(GREEDY):
        logits = model(input_ids=ids, decoder_input_ids=torch.tensor([greedy])).logits[0, -1]
        greedy.append(int(logits.argmax()))
    (folder / "greedy.txt").write_text(" ".join(map(str, greedy[1:])) + "\n")


def make(name: str, out: Path) -> None:
    model_class, config_class, values = MODELS[name]
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, config_class)(**values)
    config.dtype = torch.float32
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    if name == "flan_t5":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    widen(model)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = torch.tensor([text(TOKENS, VOCAB, 7, 3)])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        if hasattr(model, "get_encoder") and config.is_encoder_decoder and "Encoder" not in model_class:
            hidden = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            write_decoder(model, ids, folder)
        else:
            base = model.base_model if hasattr(model, "base_model") else model
            hidden = base(input_ids=ids, attention_mask=mask).last_hidden_state
            if model_class.endswith("MaskedLM"):
                floats(folder / "logits.f32", model(input_ids=ids, attention_mask=mask).logits[0])
    floats(folder / "hidden.f32", hidden[0])
    if name == "bert_legacy":
        rename(folder, to_gamma_and_beta)
    if name == "nomic_own":
        (folder / "config.json").write_text(json.dumps(nomic_config(values), indent=2) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size} bytes, hidden up to {hidden.abs().max():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    for name in arguments.names or MODELS:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
