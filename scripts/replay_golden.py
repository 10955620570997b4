"""Replays recorded outputs of the methods' own authors through pardec and compares them, case by case.

    python scripts/replay_golden.py DIR [DIR ...] [--json]

A DIR holds sets (folders with `cases.json`, `tensors.safetensors` and a `checkpoint`), or is one. A set's checkpoint is
loaded as any user's would be; every case whose method is built runs through the public API (pure functions through
`pardec.samplers`) in reference mode. Compared are sequences, forwards, what each forward committed, the positions it
was fed where they are recorded, and logits (relative error under 1e-4). Idle forwards of the references, which commit
nothing, are not made by pardec and do not count. Exit status: 0 all matched, 1 a mismatch, 2 nothing to replay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch
from golden_specs import CALLS, PURE, REPLAYS, TOLERANCE, Call, Case, load, relative
from safetensors.torch import load_file
from torch import Tensor

import pardec
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import PardecError
from pardec.models.families import match
from pardec.models.plan import Hidden, Plan
from pardec.samplers.masked.ops.schedule import even_share
from pardec.samplers.ops.distribution import DenseDistribution, filter_logits

# Cases in which a reference does what pardec does not build; they are declared where they do not match.
DECLARED = {
    "dinfer-fast-*-earlystop": "what follows an end token, committed or not, prompt included, is overwritten",
    "llada2-pipe-eos*": "a row ends at an end token though tokens before it may still be edited",
    "sjd-init-[0-3]": "start tokens of a row copy the last known one, here the cell to the left, which may be a copy",
    "llada2-pipe-tail": "positions after the canvas, which nothing sees, take a share of the schedule",
}


@dataclass
class Tally:
    """Counts of one method."""

    total: int = 0
    matched: int = 0
    declared: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)


# --- comparing ---


def replay(case: Case, model: pardec.Model, tensors: dict[str, Tensor], call: Call) -> str | None:
    """The first difference, or None."""
    spec, arguments = call
    p = case["params"]
    arguments = {"stop_ids": [], **arguments}
    count = p.get("gen_length") or p["max_new_tokens"]
    wanted = case.get("step_logits_tensors", [])
    with _Recorder(model, len(wanted)) as recorder:
        result = model.generate(input_ids=[case["prompt_ids"]], sampler=spec, max_new_tokens=count, **arguments)
    steps = result.trace.steps[0]
    golden = [(sorted(zip(*step, strict=True))) for step in case["steps"]]
    busy = [number for number, step in enumerate(golden) if step]
    ours = [list(zip(step.positions, step.tokens, strict=True)) for step in steps]
    filled = {position: token for step in golden for position, token in step}
    ended = {position for step in ours for position, _ in step} if "eos" in spec else filled.keys()
    for number, (here, index) in enumerate(zip(ours, busy, strict=False)):
        expected = [(position, token) for position, token in golden[index] if position in ended]
        if here != expected:
            return f"forward {number}: committed {here}, expected {expected}"
    output = case.get("final_canvas") or case["output_ids"]
    ours_out = result.sequences[0].tolist()
    made = result.nfe[0]
    mask_id = model.language_model.decoding_config.mask_id
    if "leftmost" in spec and mask_id in output:  # one token per step, and fewer steps than tokens
        when, made = result.trace.commit_step[0], min(made, len(busy))
        ours_out = [mask_id if when[at] >= made else token for at, token in enumerate(ours_out)]
    if made != len(busy):
        return f"{made} forwards, expected {len(busy)} that commit (of {case['nfe']})"
    if "eos" in spec:  # the reference stops without filling: positions that were never committed are masks there
        never = result.trace.commit_step[0] == -2
        mask, eos = p["mask_id"], p["eos_id"]
        output = [eos if token == mask else token for token in output]
        ours_out = [eos if unset else token for token, unset in zip(ours_out, never, strict=True)]
    if ours_out != output:
        return f"sequence {ours_out}, expected {output}"
    for key, read in (("forward_input_lens", len), ("forward_positions", list)):
        for number, index in enumerate(busy):
            full = number == 0 < index  # this forward stands for two of theirs: an idle full one, and the next
            expected = case[key][index] if case.get(key) and not full else None
            if expected is not None and (found := read(steps[number].fed)) != expected:
                return f"forward {number}: {key} {found}, expected {expected}"
    for number, name in enumerate(wanted):
        if number not in busy:
            continue
        found = recorder.logits[busy.index(number)]
        if number == busy[0] > 0:  # this forward was full; theirs may have been a part
            found = found[-len(tensors[name]) :]
        if (error := relative(found, tensors[name])) > TOLERANCE:
            return f"forward {number}: logits differ by {error:.1e}"
    return None


class _Recorder:
    """Keeps the raw logits of the first forwards while it is open."""

    def __init__(self, model: pardec.Model, count: int) -> None:
        self.engine, self.count, self.logits = model.language_model, count, list[Tensor]()

    def __enter__(self) -> _Recorder:
        forward = self.engine.decoder.forward

        def recorded(plan: Plan, cache: KVCache | None = None) -> Hidden:
            if len(self.logits) >= self.count:
                return forward(plan, cache)  # type: ignore[no-any-return]
            hidden: Hidden = forward(replace(plan, narrow=False), cache)
            self.logits.append(hidden.logits(plan.positions)[0])
            return hidden

        self.engine.decoder.forward = recorded
        return self

    def __exit__(self, *_: object) -> None:
        del self.engine.decoder.forward


def forward_logits(case: Case, model: pardec.Model, tensors: dict[str, Tensor]) -> str | None:
    """Compares plain logits, without the padding of left-padded rows, since pardec aligns rows on the left."""
    pad = case["params"].get("left_pad", 0)
    found = model.logits(torch.tensor([case["input_ids"][pad:]]))[0]
    error = relative(found, tensors[case["logits_tensor"]][pad:])
    return f"logits differ by {error:.1e}" if error > TOLERANCE else None


def num_transfer_tokens(case: Case, *_: object) -> str | None:
    """LLaDA's linear schedule."""
    steps = case["params"]["steps"]
    found = [even_share(count, steps, np.arange(steps)).tolist() for count in case["mask_counts"]]
    return None if found == case["num_transfer_tokens"] else f"{found}, expected {case['num_transfer_tokens']}"


def gumbel_argmax(case: Case, *_: object) -> str | None:
    """Gumbel-max draws from recorded uniforms."""
    temperature, logits = case["params"]["temperature"], torch.tensor(case["logits"])[None]
    distribution = DenseDistribution(filter_logits(logits, temperature=temperature, top_k=None, top_p=None))
    uniforms = torch.tensor(case["uniforms"] or [], dtype=torch.float64)  # none are recorded where none is drawn
    places = np.arange(logits.shape[1])
    drawn = (
        distribution.draw(places, lambda some: uniforms[some]) if temperature else distribution.greedy[0][0]
    ).tolist()
    return None if drawn == case["argmax"] else f"{drawn}, expected {case['argmax']}"


PURE |= {"llada_num_transfer_tokens": num_transfer_tokens, "llada_gumbel": gumbel_argmax}


def replay_set(folder: Path, tallies: dict[str, Tally]) -> None:
    """Replays one set into `tallies`."""
    cases: list[Case] = json.loads((folder / "cases.json").read_text())
    tensors = load_file(folder / "tensors.safetensors") if (folder / "tensors.safetensors").exists() else {}
    for case in cases:
        method, tally = case["method"], tallies[case["method"]]
        tally.total += 1
        pure = PURE.get(method) or (forward_logits if method == "forward_logits" else None)
        call = CALLS[method](case) if method in CALLS else None
        own = REPLAYS.get(f"{folder.name}/{method}", REPLAYS.get(method))
        if case.get("pathological_nan"):
            tally.declared += 1
        elif own is None and ((pure is None and call is None) or not _supported(folder)):
            tally.skipped += 1
        else:
            try:
                model = None
                if own is None and method not in PURE:
                    block = case["params"].get("block_length") if method == "forward_logits" else None
                    model = load(folder / case.get("checkpoint", "checkpoint"), block)
                if own:
                    difference = own(case, folder, tensors)
                else:
                    difference = pure(case, model, tensors) if pure else replay(case, model, tensors, call)
            except PardecError as error:
                difference = f"refused: {error}"
            if difference is None:
                tally.matched += 1
            elif "reference_fault" in case or any(fnmatch(case["id"], pattern) for pattern in DECLARED):
                tally.declared += 1
            else:
                tally.failures.append(f"{case['id']}: {difference}")


def _supported(folder: Path) -> bool:
    """Whether pardec loads this kind of checkpoint as a text model; sets of pure functions have no checkpoint."""
    if not (folder / "checkpoint").exists():
        return True
    config = folder / "checkpoint" / "config.json"
    return config.exists() and match(json.loads(config.read_text())) is not None


def _sets(root: Path) -> Iterator[Path]:
    yield from [root] if (root / "cases.json").exists() else sorted(path.parent for path in root.glob("*/cases.json"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dirs", type=Path, nargs="+", metavar="dir", help="a set, or a folder of sets")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tallies: dict[str, Tally] = defaultdict(Tally)
    for root in options.dirs:
        folders = list(_sets(root))
        if not folders:
            print(f"error: no cases.json in {root} or in its folders", file=sys.stderr)
            return 2
        for folder in folders:
            replay_set(folder, tallies)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    if options.json:
        methods = {}
        for name, tally in sorted(tallies.items()):
            counts = asdict(tally)
            del counts["failures"]
            methods[name] = counts
        print(json.dumps({"methods": methods}, indent=1))
    else:
        for name, tally in sorted(tallies.items()):
            rest = [f"{n} {what}" for what, n in (("declared", tally.declared), ("skipped", tally.skipped)) if n]
            print(f"{name:32} {tally.matched}/{tally.total}{'  ' + ', '.join(rest) if rest else ''}")
    for failure in failures:
        print(f"mismatch {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
