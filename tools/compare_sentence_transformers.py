#!/usr/bin/env python3
"""Vectors beside those of sentence-transformers, from the same directories: random encoders of several families with
each kind of pooling, dense layers, prompts and lengths.

    python tools/compare_sentence_transformers.py --butterfly build/release/bin/butterfly

Prints the smallest cosine of each directory, and ends with status 1 where one is below 1 - 1e-5.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from bench_embeddings import byte_tokenizer
from make_encoder_golden import widen
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.base.modules import Dense, Normalize, Transformer

SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 130, "pad_token_id": 0}
ENDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
CASES = {
    "bert_mean": ("BertModel", "BertConfig", SIZES, "mean", None, {}),
    "bert_cls_dense": ("BertModel", "BertConfig", SIZES, "cls", torch.nn.Tanh(), {}),
    "roberta_max": ("RobertaModel", "RobertaConfig", SIZES, "max", None, {}),
    "distilbert_weighted": ("DistilBertModel", "DistilBertConfig",
                            {"vocab_size": 300, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4,
                             "max_position_embeddings": 130}, "weightedmean", None, {}),
    "mpnet_both": ("MPNetModel", "MPNetConfig", SIZES | {"pad_token_id": 1}, ("cls", "mean"), torch.nn.Identity(), {}),
    "modernbert_prompt": ("ModernBertModel", "ModernBertConfig", SIZES | {"local_attention": 16} | dict.fromkeys(ENDS, 1), "mean", None,
                          {"prompts": {"query": "find this: "}, "default_prompt_name": "query"}),
    "qwen3_last": ("Qwen3Model", "Qwen3Config",
                   {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 130}, "lasttoken",
                   None, {}),
}
TEXTS = ["a", "a text of several words", "Grüße aus 東京", "and another one, which is rather longer than those before it. " * 2]


def make(name: str, folder: Path) -> SentenceTransformer:
    model_class, config_class, values, pooling, activation, prompts = CASES[name]
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**values)).float().eval()
    widen(model)
    plain = folder / "plain"
    model.save_pretrained(plain)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), pad_token="!", model_max_length=128
    ).save_pretrained(plain)
    modules = [Transformer(str(plain), max_seq_length=100)]
    width = 64
    modules.append(Pooling(width, pooling_mode=pooling))
    width *= len(pooling) if isinstance(pooling, tuple) else 1
    if activation is not None:
        modules.append(Dense(width, 40, activation_function=activation))
    modules.append(Normalize())
    sentence = SentenceTransformer(modules=modules, device="cpu", **prompts)
    sentence.save(str(folder / "saved"))
    return SentenceTransformer(str(folder / "saved"), device="cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", required=True)
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    worst = 1.0
    for name in arguments.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            sentence = make(name, Path(folder))
            expected = torch.tensor(sentence.encode(TEXTS))
            command = [arguments.butterfly, "embed", "-m", str(Path(folder) / "saved"), "--json", *TEXTS, "-q"]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                print(f"{name}: {run.stderr.strip()}")
                worst = -1.0
                continue
            vectors = torch.tensor([json.loads(line)["vector"] for line in run.stdout.splitlines()])
            cosine = torch.nn.functional.cosine_similarity(vectors, expected).min().item()
            print(f"{name}: {vectors.shape[1]} elements, smallest cosine {cosine:.8f}", flush=True)
            worst = min(worst, cosine)
    sys.exit(0 if worst >= 1 - 1e-5 else 1)


if __name__ == "__main__":
    main()
