"""Entry g: the next part of training an MTP layer for SmolLM2, with which it drafts for itself (`draft=mtp`).

The training is `pardec.training`'s, as in `scripts/train_draft.py --kind mtp --online`: the target runs over each batch
of texts that it wrote itself. The layer is written as `mtp.safetensors`, with its config in the file's metadata; one
that was carried here is where a run starts. The texts are those of entry e, or a few that this entry writes.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import pardec
from gpu_runs.llama import Weights
from gpu_runs.report import Report
from gpu_runs.smollm2 import Shape
from gpu_runs.texts import Texts, write
from gpu_runs.training import carried_model, tiny
from pardec.training.run import RATE, Plan, Run, prepare
from pardec.training.texts import network_of

FILE = "mtp.safetensors"
LEAST_TOKENS = 300_000  # tokens of texts; fewer are completed
LONGEST = 512  # tokens of a text
SAVING_S = 10.0  # seconds that are kept for measuring and writing the layer


def run(report: Report) -> None:
    """Writes texts if there are none, trains until the time is over, then measures the layer and writes it."""
    if report.dry:
        shape, template, base = tiny()
        device, wanted, dtype = torch.device("cpu"), 1500, torch.float32
    else:
        given = carried_model(report)
        if given is None:
            return
        shape, template, base = given
        device, wanted, dtype = torch.device("cuda"), LEAST_TOKENS, torch.bfloat16
    texts = _texts(report, shape, base, template, device, wanted)
    with tempfile.TemporaryDirectory() as folder:
        training, resumed = _start(report, Path(folder), shape, base, template, texts, device, dtype)
        losses: list[float] = []
        started, training.minutes = time.monotonic(), max(report.left() - SAVING_S, 1.0) / 60
        while not training.done() and report.left() > (2.0 if report.dry else SAVING_S):
            loss = training.advance()
            training.seconds = time.monotonic() - started  # the learning rate falls with it
            training.observe(loss)
            losses.append(loss)
            if training.step % (5 if report.dry else 50) == 0:
                report.row(part="steps", step=training.step, loss=training.loss, tokens=training.tokens)
        found = training.evaluate()
        layer = export(training.plan.out, report.file.parent / FILE)
    before, after = losses[0] if losses else 0.0, training.loss
    report.row(part="layer", resumed=resumed, steps=training.step, bytes=layer.stat().st_size, **found)
    report.line(
        f"{len(losses)} steps from {'the carried layer' if resumed else 'the last layer'}; loss {before:.3f} at the "
        f"first, {after:.3f} at the last; {found['length']:.2f} tokens a forward of the target, greedy, chains of "
        f"{training.plan.drafts}"
    )


def _texts(
    report: Report, shape: Shape, base: dict[str, Tensor], template: dict[str, Any], device: torch.device, wanted: int
) -> Texts:
    """The texts that were carried, and new ones up to `wanted` tokens."""
    texts = None if report.dry else Texts.load(report.inputs)
    have = 0 if texts is None else len(texts.ids)
    if have < wanted:
        small = {"message": 24, "answer": 24} if report.dry else {}
        model = Weights(shape, base, device, torch.bfloat16)
        rows = 32 if report.dry else 1024
        fresh = write(model, template, tokens=wanted - have, seconds=0.5 * report.left(), rows=rows, seed=have, **small)
        texts = fresh if texts is None else texts + fresh
        report.row(part="texts", texts=len(texts), tokens=len(texts.ids))
    if texts is None or len(texts) < 8:
        raise RuntimeError("too few texts were written")
    return texts


def _start(
    report: Report,
    folder: Path,
    shape: Shape,
    base: dict[str, Tensor],
    template: dict[str, Any],
    texts: Texts,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Run, bool]:
    """The run, and whether it starts from a layer that was carried here."""
    write_target(folder / "target", shape, base, template["end"])
    target = network_of(pardec.load(folder / "target", device=str(device), dtype=str(dtype).removeprefix("torch.")))
    starts = texts.starts()
    rows = [
        (texts.ids[at : at + prompt].tolist(), texts.ids[at + prompt : at + length].tolist())
        for at, prompt, length in zip(starts.tolist(), texts.prompts.tolist(), texts.lengths.tolist(), strict=True)
    ]
    carried = report.inputs / FILE
    resumed = not report.dry and carried.is_file()
    if resumed:
        restore(carried, folder / "carried")
    plan = Plan(
        kind="mtp",
        name="smollm2-mtp",
        out=folder / "out",
        state=folder / "state",
        steps=20 if report.dry else None,
        batch=300 if report.dry else 16_000,
        rate=RATE["mtp"] * (0.5 if resumed else 1.0),
        validation=4 if report.dry else 64,
        every=1e9,  # measured once, at the end
        drafts=2 if report.dry else 5,
        init=folder / "carried" if resumed else None,
        target_name="SmolLM2-135M-Instruct",
        target_path="HuggingFaceTB/SmolLM2-135M-Instruct",
        script="scripts/gpu_queue --only g",
    )
    files = {"texts": [row for row in rows if len(row[1]) > 2]}
    training = prepare(
        target, files, plan, {}, folder=folder / "state", longest=LONGEST, online=True, report=lambda line: None
    )
    return training, resumed


def write_target(folder: Path, shape: Shape, tensors: dict[str, Tensor], end: int) -> None:
    """The target as a checkpoint folder of a Llama with tied embeddings, without a tokenizer."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **shape.config(end),
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    whole = {name: values.to(torch.bfloat16).contiguous() for name, values in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def export(folder: Path, file: Path) -> Path:
    """Writes an exported layer to one file, its config in the metadata; returns the file."""
    config = (folder / "config.json").read_text(encoding="utf-8")
    save_file(load_file(folder / "model.safetensors"), file, metadata={"format": "pt", "config": config})
    return file


def restore(file: Path, folder: Path) -> None:
    """Writes a layer of one file as the folder that it was exported from: `draft=mtp:name=FOLDER`."""
    with safe_open(file, framework="pt") as content:
        config = content.metadata()["config"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config, encoding="utf-8")
    save_file(load_file(file), folder / "model.safetensors", metadata={"format": "pt"})
