"""Says what each key of a drafter's config does in every published layout, and writes the page drafter_files.md.

    python benchmarks/drafter_files.py [--out benchmarks/drafter_files.md]

Small random folders are written in the layouts of EAGLE, SpecForge, speculators, Medusa and Hydra by the writers of the
tests, which compare their drafts with formulas in float64. Then one key of the config is changed, and the logits that
pardec drafts are compared with those before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from config_keys import table, without_names  # noqa: E402

from pardec.environment import versions  # noqa: E402
from pardec.models.draft_modules.load import find, load_draft_module, recognise  # noqa: E402
from pardec.models.errors import ModelError  # noqa: E402
from pardec.models.plan import Plan  # noqa: E402
from tests.models.draft_modules import test_eagle, test_hydra, test_medusa  # noqa: E402
from tests.reference import eagle_folders, head_folders  # noqa: E402

PAGE = """# What the keys of a drafter's config do

pardec {pardec}, torch {torch}, {day}. Small random drafters in published layouts, with one key of the config changed:
*followed*, the drafted logits change; *ignored*, they do not; *refused*, with the reasons below. That the logits are
right without a change is tested against formulas in float64 ([layouts](../docs/guides/drafters.md)). A key that is
ignored changes how many tokens are accepted, and no text. Biases, norms of heads, and how many heads of Medusa or Hydra
there are, are those of the file, whatever the config says. In the layout of speculators, keys of a layer stand in
`transformer_layer_config`, and there is a `sliding_window` of 2.

`python benchmarks/drafter_files.py`

{eagles}

{heads}

## Why keys are refused

{reasons}

## Folders that are refused

{refused}
"""
_STATES = head_folders.values(4, 16, seed=5, scale=1.0)


def _eagle(folder: Path) -> Tensor:
    model = test_eagle.target()
    module: Any = load_draft_module(folder, model)
    known = test_eagle.hidden(model, module, test_eagle.TOKENS[:5])
    return test_eagle.drafted(module, test_eagle.TOKENS[1:], module.fuse(known)[:4])[1]


def _medusa(folder: Path) -> Tensor:
    module: Any = load_draft_module(folder, test_medusa.target())
    return module.logits(_STATES, range(module.depth))


def _hydra(folder: Path) -> Tensor:
    model = test_hydra.target()
    module: Any = load_draft_module(folder, model)
    states = _STATES
    if module.prefix is not None:
        plan = Plan.full(torch.full((1, len(states)), -1), model.visible())
        states = module.prefix(replace(plan, soft=states[None])).normed()[0]
    return module.grounded_logits(states, torch.tensor([[[3, 9]]]).expand(len(states), -1, -1))


def _write_eagle(layout: str, **flags: Any) -> Callable[[Path], object]:
    return lambda folder: eagle_folders.write(folder, layout, vocab=test_eagle.VOCAB, **flags)


EAGLES = {
    "EAGLE-1": _write_eagle("eagle"),
    "EAGLE-3": _write_eagle("eagle3", draft=15),
    "SpecForge": _write_eagle("eagle3", draft=15, fc_norm=True, norm_output=True),
    "speculators": _write_eagle("speculators", draft=15, sliding_window=2),  # a window in layers that layer_types names
}
HEADS = {
    "Medusa": lambda folder: test_medusa.folder(folder, head_folders.medusa()),
    "Medusa of vLLM": lambda folder: test_medusa.folder(folder, head_folders.medusa(), "vllm"),
    "Hydra": lambda folder: test_hydra.folder(folder, head_folders.hydra()),
    "Hydra++": lambda folder: test_hydra.folder(
        folder, head_folders.hydra(prefix=test_hydra.LAYER), hydra_head_arch="prefix-mlp"
    ),
}
_IDS = "eagle_aux_hidden_state_layer_ids"
_ROPE = {"rope_type": "default", "rope_theta": 300.0}
COMMON: dict[str, list[Any]] = {
    "vocab_size": [39, 60],
    "architectures": [["PEagleDraftModel"]],
    "quantization_config": [{"quant_method": "fp8"}],
    "torch_dtype": ["float16"],
    "logit_scale": [0.5],
}
LAYER_KEYS: dict[str, list[Any]] = {  # keys of a decoder layer; nested in the layout of speculators
    "hidden_size": [24],
    "num_attention_heads": [4],
    "num_key_value_heads": [1],
    "num_hidden_layers": [2],
    "intermediate_size": [32],
    "head_dim": [4],
    "model_type": ["qwen3"],
    "hidden_act": ["gelu", "relu"],
    "rms_norm_eps": [0.5],
    "rope_theta": [300.0],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}],
    "rope_parameters": [_ROPE],
    "partial_rotary_factor": [0.5],
    "sliding_window": [3],
    "layer_types": [["sliding_attention"]],
    "attention_bias": [True],
    "mlp_bias": [True],
    "pretraining_tp": [2],
    "attention_multiplier": [0.3],
}
EAGLE_KEYS: dict[str, list[Any]] = {  # at the top level
    "draft_vocab_size": [14],
    "target_hidden_size": [24],
    "tie_word_embeddings": [True],
    "norm_before_residual": [True],
    "norm_before_fc": [True],
    "fc_norm": [True, False],
    "norm_output": [True, False],
    _IDS: [[1, 3, 4], [0, 2, 6], [2, 4]],
    "eagle_config": [{_IDS: [0, 2, 6]}, {"use_aux_hidden_state": False}],
    "bias": [False],
}
HEAD_KEYS: dict[str, list[Any]] = {
    "medusa_num_heads": [1],
    "medusa_num_layers": [2],
    "num_heads": [1],
    "truncated_vocab_size": [10],
    "original_lm_head": [True],
    "hydra_num_heads": [1],
    "hydra_head_arch": ["mlp", "prefix-mlp", "eagle-attn"],
    "grounded_heads": [False],
    "hidden_state_offset": [1],
    "rms_norm_eps": [0.5],
    "rope_theta": [300.0],
}


def drafted(folder: Path) -> Tensor:
    """Logits of a drafter of any kind for fixed tokens and states."""
    files = find(folder)
    return {"eagle": _eagle, "medusa": _medusa, "hydra": _hydra}[recognise(files).name](folder)


def measure(layouts: dict[str, Callable[[Path], object]], *keys: dict[str, list[Any]]) -> tuple[str, list[list[str]]]:
    """A table of the effect of each change in each layout, and the reasons of refusals."""
    verdicts: defaultdict[str, dict[str, str]] = defaultdict(dict)
    reasons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for layout, write in layouts.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "drafter"
            write(folder)
            file = folder / "config.json"
            whole, plain = json.loads(file.read_text()), drafted(folder)
            inner = whole.get("transformer_layer_config", whole)
            for key, value in ((key, value) for each in keys for key, values in each.items() for value in values):
                change = f"`{key}: {json.dumps(value)}`"
                nested = inner is not whole and (key in LAYER_KEYS or key in inner)
                changed = {"transformer_layer_config": inner | {key: value}} if nested else {key: value}
                file.write_text(json.dumps(whole | changed))
                try:
                    verdicts[change][layout] = "ignored" if torch.equal(drafted(folder), plain) else "followed"
                except ModelError as error:
                    verdicts[change][layout] = "refused"
                    reasons[change, without_names(str(error))].append(layout)
    rows = ([change, *(row[layout] for layout in layouts)] for change, row in verdicts.items())
    return table(["key", *layouts], rows), [[change, ", ".join(of), said] for (change, said), of in reasons.items()]


def refused() -> list[list[str]]:
    """The table of EAGLE folders that have to be refused, with their errors; the tests name them."""
    rows = []
    for case, (layout, flags, _) in test_eagle.REFUSED.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "drafter"
            eagle_folders.write(folder, layout, **{"vocab": test_eagle.VOCAB, **flags})
            try:
                load_draft_module(folder, test_eagle.target())
            except ModelError as error:
                rows.append([case, layout, without_names(str(error))])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    eagles, why = measure(EAGLES, COMMON, LAYER_KEYS, EAGLE_KEYS)
    heads, more = measure(HEADS, COMMON, HEAD_KEYS)
    page = PAGE.format(
        **{key: versions()[key] for key in ("pardec", "torch")},
        day=date.today().isoformat(),
        eagles=eagles,
        heads=heads,
        reasons=table(["key", "layouts", "error"], why + more),
        refused=table(["folder", "layout", "error"], refused()),
    )
    options.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
