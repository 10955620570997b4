"""What packed and quantized weights, and int8 activations, cost on a CPU: KL per token, and greedy agreement.

    python benchmarks/packed_error.py --model FILE.gguf|FOLDER --prompts spec_bench.jsonl [--count 8] [--new 64]

The reference is the model itself with plain float32 weights, and the text its own greedy answer. At each token of the
answers, KL(reference | other) in nats, and whether both have the same likeliest token. Prompts are lines of JSON with
`turns`, as in Spec-Bench's question file: the first turn is asked, in the chat template.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pardec
from pardec.training.texts import chat_ids


def answers(model: pardec.Model, prompts: list[str], new: int) -> list[tuple[list[int], int]]:
    """Ids of each prompt and its greedy answer, and where the answer begins."""
    found = []
    for prompt in prompts:
        ids = chat_ids(model, prompt)
        tokens = model.generate(input_ids=[ids], sampler="sequential", max_new_tokens=new).tokens[0]
        found.append((ids + list(tokens), len(ids)))
    return found


def log_probabilities(model: pardec.Model, texts: list[tuple[list[int], int]]) -> Tensor:
    """[T, V] of the predictions of all tokens of all answers."""
    rows = [model.logits(torch.tensor([ids]))[0, start - 1 : -1].double().log_softmax(-1) for ids, start in texts]
    return torch.cat(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    given = parser.parse_args()
    lines = given.prompts.read_text(encoding="utf-8").splitlines()
    every = [json.loads(line)["turns"][0] for line in lines]
    prompts = every[:: max(1, len(every) // given.count)][: given.count]
    is_gguf = given.model.endswith(".gguf")
    plain: dict[str, Any] = {"packed": False} if is_gguf else {}
    model = pardec.load(given.model, device="cpu", dtype="float32", **plain)
    texts = answers(model, prompts, given.new)
    reference = log_probabilities(model, texts)
    cases: list[dict[str, Any]] = [{"packed": True}, {"packed": True, "activations": "int8"}] if is_gguf else []
    cases += [{"quantize": kind, "activations": each} for kind in ("int8", "int4") for each in ("float32", "int8")]
    print(f"| {len(prompts)} prompts, {len(reference)} tokens | MB | KL per token | same likeliest token |")
    print("|---|---|---|---|")
    for case in cases:
        other = pardec.load(given.model, device="cpu", dtype="float32", **case)
        found = log_probabilities(other, texts)
        divergence = (reference.exp() * (reference - found)).sum(-1).mean().item()
        same = (reference.argmax(-1) == found.argmax(-1)).double().mean().item()
        name = ", ".join(f"`{key}={value}`" for key, value in case.items())
        print(f"| {name} | {other.network.weight_bytes / 1e6:.0f} | {divergence:.5f} | {same:.1%} |", flush=True)


if __name__ == "__main__":
    main()
