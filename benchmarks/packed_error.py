"""What packed and quantized weights, and int8 activations, cost on a CPU: KL per token, and greedy agreement.

    python benchmarks/packed_error.py --model FILE.gguf|FOLDER --prompts spec_bench.jsonl [--count 8] [--new 64]
        [--llama-cpp PYTHON] [--only packed]

The reference is the model itself with plain float32 weights, and the text its own greedy answer. At each token of the
answers, KL(reference | other) in nats, and whether both have the same likeliest token. Prompts are lines of JSON with
`turns`, as in Spec-Bench's question file: the first turn is asked, in the chat template. `--llama-cpp` adds a row of
llama.cpp, which rounds activations, too: PYTHON is an interpreter that has the package llama-cpp-python (0.3.36 here).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy
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


def by_worker(name: str, python: Path, model: str | Path, texts: list[tuple[list[int], int]]) -> Tensor:
    """[T, V] log-probabilities of another engine. Raises RuntimeError with the last line of a worker that fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        # -P: modules beside the worker have names of packages.
        program = [python, "-P", Path(__file__).parent / "cpu_workers" / f"{name}.py", model, out]
        ran = subprocess.run(program, input=json.dumps(texts), capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError((ran.stderr.strip().splitlines() or ["no output"])[-1][:160])
        return torch.from_numpy(numpy.load(out)).double().log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--only", choices=("packed",), help="measure packed weights only, without quantize=")
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
    if not given.only:
        cases += [{"quantize": kind, "activations": each} for kind in ("int8", "int4") for each in ("float32", "int8")]
    print(f"| {len(prompts)} prompts, {len(reference)} tokens | MB | KL per token | same likeliest token |")
    print("|---|---|---|---|")
    for case in cases:
        other = pardec.load(given.model, device="cpu", dtype="float32", **case)
        name = ", ".join(f"`{key}={value}`" for key, value in case.items())
        show(name, other.network.weight_bytes, reference, log_probabilities(other, texts))
    if given.llama_cpp:
        found = by_worker("llama_cpp_logits", given.llama_cpp, given.model, texts)
        show("llama.cpp", Path(given.model).stat().st_size, reference, found)


def compared(reference: Tensor, found: Tensor) -> tuple[float, float]:
    """KL per token, and the share of tokens with the same likeliest one."""
    divergence = (reference.exp() * (reference - found)).sum(-1).mean().item()
    return divergence, (reference.argmax(-1) == found.argmax(-1)).double().mean().item()


def show(name: str, size: int, reference: Tensor, found: Tensor) -> None:
    divergence, same = compared(reference, found)
    print(f"| {name} | {size / 1e6:.0f} | {divergence:.5f} | {same:.1%} |", flush=True)


if __name__ == "__main__":
    main()
