#!/usr/bin/env python3
"""lm-eval's verdict on `butterfly serve`, beside its verdict on transformers in fp32 with the same model.

    python3 -m venv VENV && VENV/bin/pip install -r tools/requirements.txt accelerate "lm_eval[api]==0.4.13"
    VENV/bin/python tools/compare_lm_eval.py

A task of our own: multiple choice, each question a text of the model's kind and four ways to go on, of which one is
how it went. The texts are written here by the model over the server; the wrong ways are from other texts. The model is
models/demo.gguf as a Hugging Face directory, or a directory with weights and tokenizer.json (--model).
Both sides get the same files, task and tokenizer; the server runs over worker processes, asked by `local-completions`
(log-likelihoods by echo), transformers by `hf`. Prints both accuracies, and ends with status 1 where they are more than
0.5 points or a log-likelihood more than 0.1 nats apart, or where lm-eval got fewer questions than were asked for.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/distributed"))
from make_model_golden import GgufFile  # noqa: E402
from program import Worker  # noqa: E402
from serve_kit import Server  # noqa: E402

NAMES = ["ROMEO", "JULIET", "KING RICHARD II", "First Citizen", "QUEEN MARGARET", "GLOUCESTER", "MENENIUS", "CORIOLANUS"]
POINTS_MAX = 0.5
NATS_MAX = 0.1  # of a way to go on: halves and floats differ by a tenth of that
TASK = """task: continuations
dataset_path: json
dataset_kwargs: {{data_files: {{test: {questions}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""


def demo_directory(folder: Path) -> Path:
    """models/demo.gguf for transformers: the same weights, the same tokens."""
    file = GgufFile(ROOT / "models/demo.gguf")
    config = file.config()
    folder.mkdir()
    state = {name: tensor.half().contiguous() for name, tensor in file.model().state_dict().items()
             if name != "lm_head.weight"}
    safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    end = {"bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True,
        "torch_dtype": "float16", **{name: getattr(config, name) for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta")}, **end}))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=file.tokenizer(), bos_token="<|endoftext|>", eos_token="<|endoftext|>",
        model_max_length=config.max_position_embeddings).save_pretrained(folder)
    return folder


def texts_of(server: Server, count: int) -> list[str]:
    """What the model writes, some words of it each."""
    texts, seed = [], 0
    while len(texts) < count:
        prompts = [f"{NAMES[(seed + i) % len(NAMES)]}:\n" for i in range(16)]
        body = {"prompt": prompts, "max_tokens": 160, "temperature": 0.9, "seed": seed, "ignore_eos": True}
        texts += [choice["text"] for choice in server.good("/v1/completions", body)["choices"]]
        seed += len(prompts)
    return texts[:count]


def questions_of(texts: list[str], count: int) -> list[dict]:
    """A question at each third of a text: how does it go on for the next words?"""
    chance = random.Random(7)
    pieces = []
    for text in texts:
        words = text.split(" ")
        for at in (len(words) // 4, len(words) // 2, 3 * len(words) // 4):
            way = " " + " ".join(words[at:at + 5])
            if at >= 6 and len(words) - at > 5 and len(way.strip()) > 8:
                pieces.append((" ".join(words[max(0, at - 30):at]), way))
    questions = []
    for number, (context, way) in enumerate(pieces[:count]):
        others = [pieces[i][1] for i in chance.sample(range(len(pieces)), 12) if i != number and pieces[i][1] != way]
        choices = [way, *others[:3]]
        chance.shuffle(choices)
        questions.append({"context": context, "choices": choices, "gold": choices.index(way)})
    return questions


def lm_eval(folder: Path, name: str, kind: str, model_arguments: dict, batch: int) -> tuple[dict, list[dict]]:
    """The results of the task, and the verdict on each question."""
    out = folder / name
    command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args",
               ",".join(f"{key}={value}" for key, value in model_arguments.items()), "--tasks", "continuations",
               "--include_path", str(folder / "task"), "--batch_size", str(batch), "--output_path", str(out),
               "--log_samples", "--device", "cpu"]
    env = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
               HF_DATASETS_CACHE=str(folder / "cache"), OPENAI_API_KEY="none", OMP_WAIT_POLICY="PASSIVE")
    print(f"lm_eval with {kind} ...", file=sys.stderr, flush=True)
    run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)  # progress is on stderr
    results = sorted(out.rglob("results*.json"))
    if run.returncode != 0 or not results:
        raise SystemExit(f"lm_eval with {kind} ended with {run.returncode}:\n{run.stdout[-4000:]}")
    samples = [json.loads(line) for line in sorted(out.rglob("samples*.jsonl"))[0].read_text().splitlines()]
    return json.loads(results[0].read_text())["results"]["continuations"], sorted(samples, key=lambda one: one["doc_id"])


def likelihoods(sample: dict) -> list[float]:
    return [float(each[0]) for each in sample["filtered_resps"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face directory instead of models/demo.gguf")
    parser.add_argument("--questions", type=int, default=480)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--break", dest="wrong", action="store_true", help="transformers is judged by other answers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = (arguments.model or demo_directory(folder / "model")).resolve()
        workers = [Worker() for _ in range(arguments.workers)]
        nodes = ["--workers", ",".join(worker.address for worker in workers), "--split", "uniform"] if workers else []
        with Server(*nodes, "--alias", "judged", "--parallel", "16", model=str(model)) as server:
            questions = questions_of(texts_of(server, arguments.questions * 5 // 12 + 16), arguments.questions)
            (folder / "task").mkdir()
            (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
            (folder / "task/continuations.yaml").write_text(TASK.format(questions=folder / "questions.jsonl"))
            limit = server.good("/v1/models")["data"][0]["max_model_len"]
            found, ours = lm_eval(folder, "ours", "local-completions", {
                "model": "judged", "base_url": f"http://{server.address}/v1/completions", "tokenizer": model,
                "tokenizer_backend": "huggingface", "max_length": limit, "num_concurrent": 2}, 8)
            nodes_used = len(server.good("/v1/cluster")["nodes"])
        for worker in workers:
            worker.__exit__()
        if arguments.wrong:
            (folder / "questions.jsonl").write_text("".join(
                json.dumps(dict(each, gold=(each["gold"] + (i % 10 == 0)) % 4)) + "\n" for i, each in enumerate(questions)))
        expected, theirs = lm_eval(folder, "theirs", "hf", {
            "pretrained": model, "dtype": "float32", "max_length": limit}, 8)
    both = list(zip(ours, theirs, strict=True))
    others = sum(one["acc"] != other["acc"] for one, other in both)
    gap = max(abs(a - b) for one, other in both for a, b in zip(likelihoods(one), likelihoods(other), strict=True))
    points = {name: (100 * found[f"{name},none"], 100 * expected[f"{name},none"]) for name in ("acc", "acc_norm")}
    print(f"{len(ours)} questions, {model.name}, {nodes_used} nodes; chance is 25 %")
    for name, (a, b) in points.items():
        print(f"{name}: butterfly serve {a:.2f} %, transformers fp32 {b:.2f} %, {abs(a - b):.2f} points apart")
    print(f"{others} questions judged otherwise; log-likelihoods at most {gap:.5f} nats apart")
    held = len(ours) >= arguments.questions and gap <= NATS_MAX and all(abs(a - b) <= POINTS_MAX for a, b in points.values())
    print("held" if held else "NOT HELD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
