"""Run by torchrun in two processes: compares a shared model with the whole one, for each folder; prints JSON.

Last it runs the command `pardec generate`, with and without --tp.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

import pardec
from pardec.cli import run
from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.loading.update import load_weights
from pardec.models.plan import Plan

FOLDER = Path(sys.argv[1])
IDS = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(3))
SAMPLERS = {
    "llama": ("sequential", "recycling+speculative"),
    "llada": ("threshold:tau=0.3@dual", "sequential"),
    "llada2": ("threshold:tau=0.3@block", "sequential"),
}


def told(name: str) -> dict[str, object]:
    """The outputs of one model in this process."""
    whole, shared = load(FOLDER / name, device="cpu"), load(FOLDER / name, device="cpu", tp=True)
    caches = whole.new_cache(2, 12), shared.new_cache(2, 12)
    errors = []
    for stop in (6, 9):
        plan = Plan.full(IDS[:, :stop], whole.visible())
        for first, second in ((None, None), caches):
            difference = whole.forward(plan, first).logits() - shared.forward(plan, second).logits()
            errors.append(float(difference.abs().max()))
    tokens = {}
    for sampler, temperature in zip(SAMPLERS[name], (0.0, 0.8), strict=True):
        made = [
            pardec.Model(model).generate(
                input_ids=IDS, sampler=sampler, max_new_tokens=8, temperature=temperature, seed=[1, 2], stop_ids=[]
            )
            for model in (whole, shared)
        ]
        tokens[f"{sampler} {temperature}"] = [one.tokens for one in made]
    new = {name: value.flip(0) for name, value in load_file(FOLDER / name / "model.safetensors").items()}
    plan, memory = Plan.full(IDS, whole.visible()), [weight.data_ptr() for weight in shared.decoder.parameters()]
    before = whole.forward(plan).logits()
    for model in (whole, shared):
        load_weights(model, new)
    after = whole.forward(plan).logits()
    return {
        "update": {
            "error": float((after - shared.forward(plan).logits()).abs().max()),
            "change": float((after - before).abs().max()),
            "stays": memory == [weight.data_ptr() for weight in shared.decoder.parameters()],
        },
        "errors": errors,
        "tokens": tokens,
        "kv_heads": [cache.k[0].shape[2] for cache in caches],
        "bytes": [model.weight_bytes for model in (whole, shared)],
        "parameters": [model.parameters for model in (whole, shared)],
        "said": shared.describe(),
    }


def printed(*more: str) -> tuple[int, str, str]:
    """The exit code and the outputs of the command in this process."""
    asked = ["generate", "tiny-llama", "-p", "Ann has 8 cups. How many has Ann?", "-n", "8", "--device", "cpu"]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run([*asked, *more])
    return code, out.getvalue(), err.getvalue()


found = {name: told(name) for name in SAMPLERS}
try:
    load(FOLDER / "odd", device="cpu", tp=True)
except ModelError as error:
    found["odd"] = {"refused": str(error)}
found["command"] = {"alone": printed(), "shared": printed("--tp")}
gathered: list[object] = [None] * dist.get_world_size()
dist.all_gather_object(gathered, found)
if os.environ["RANK"] == "0":
    print("FOUND " + json.dumps(gathered))
