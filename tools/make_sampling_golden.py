#!/usr/bin/env python3
"""Writes tests/golden/sampling.json: what the logits processors of transformers leave of random logits.

    tools/make_sampling_golden.py > tests/golden/sampling.json

Each case has logits, a text so far, settings, and the tokens that are left with their probabilities, in the order bias,
repetition penalty, frequency and presence penalty (OpenAI's formula, which transformers has not), temperature, top-k,
top-p, min-p; and the log-softmax of the raw logits. Needs torch and transformers.
"""

import json
import random
import sys

import torch
import transformers

VOCAB = 24


def case(number):
    r = random.Random(number)
    logits = [round(r.gauss(0, 2), 3) for _ in range(VOCAB)]
    prompt = [r.randrange(VOCAB) for _ in range(r.randint(1, 6))]
    answer = [r.randrange(VOCAB) for _ in range(r.randint(0, 6))]
    settings = {"temperature": r.choice([0.5, 0.8, 1.0, 1.7])}
    for name, values in {"top_k": [1, 3, 8, 40], "top_p": [0.3, 0.75, 0.95], "min_p": [0.02, 0.1, 0.4],
                         "repeat_penalty": [1.3, 0.8], "presence_penalty": [0.6, -1.0],
                         "frequency_penalty": [0.4, 1.5, -0.5]}.items():
        if r.random() < 0.5:
            settings[name] = r.choice(values)
    if r.random() < 0.5:
        settings["logit_bias"] = {str(r.randrange(VOCAB)): r.choice([-100, -2.5, 1.5, 4]) for _ in range(3)}
    return {"logits": logits, "prompt": prompt, "answer": answer, "settings": settings}


def expected(made):
    settings = made["settings"]
    raw = torch.tensor([made["logits"]], dtype=torch.float32)
    ids = torch.tensor([made["prompt"] + made["answer"]])
    scores = raw.clone()
    banned = []
    for token, value in settings.get("logit_bias", {}).items():
        scores[0, int(token)] += value
        banned += [int(token)] if value == -100 else []
    if "repeat_penalty" in settings:
        scores = transformers.RepetitionPenaltyLogitsProcessor(settings["repeat_penalty"])(ids, scores)
    for token in set(made["answer"]):
        scores[0, token] -= settings.get("frequency_penalty", 0) * made["answer"].count(token)
        scores[0, token] -= settings.get("presence_penalty", 0)
    scores[0, banned] = -float("inf")
    scores = transformers.TemperatureLogitsWarper(settings["temperature"])(ids, scores)
    if "top_k" in settings:
        scores = transformers.TopKLogitsWarper(settings["top_k"])(ids, scores)
    if "top_p" in settings:
        scores = transformers.TopPLogitsWarper(settings["top_p"])(ids, scores)
    if "min_p" in settings:
        scores = transformers.MinPLogitsWarper(settings["min_p"])(ids, scores)
    left = torch.softmax(scores.double(), -1)[0]
    return {"left": {str(i): round(p.item(), 6) for i, p in enumerate(left) if p > 0},
            "logprobs": [round(x.item(), 6) for x in torch.log_softmax(raw.double(), -1)[0]]}


def main():
    cases = []
    for number in range(60):
        made = case(number)
        cases.append({**made, **expected(made)})
    json.dump({"made_by": "tools/make_sampling_golden.py", "transformers": transformers.__version__, "cases": cases},
              sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
