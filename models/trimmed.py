"""A model whose head computes the logits of some ids only; all other ids are excluded.

VOCABTRIM: Vocabulary Pruning for Efficient Speculative Decoding in LLMs, https://arxiv.org/abs/2506.22694

    logits[ids] = W[ids] h,  -inf elsewhere

Meant for drafting: an exact acceptance makes up for what such a model never predicts, and its head, most of what a
small model with a large vocabulary reads, shrinks to the rows that matter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .caches.kv_cache import KVCache
from .cuda_graphs.runner import GraphRunner, plain_decoder, runner
from .decoder import Decoder
from .errors import ModelError, listed, one_line
from .kernels import layout
from .kernels.cpu.packed import PackedWeight
from .kernels.matmul import Linear
from .layers.quantize import weight_bytes
from .model import LanguageModel
from .plan import Hidden, IdSubset, Plan
from .stack import WrapperStack

ORDER = "frequent_ids.json"  # in a checkpoint's folder: ids as a JSON list, the commonest first
_FORM = "it needs a JSON list of whole numbers, or one safetensors tensor of them"


class Trimmed(WrapperStack):
    """The stack `base` with the rows `ids` [N] of its head."""

    base: Decoder | GraphRunner

    def __init__(self, base: Decoder | GraphRunner, ids: Tensor) -> None:
        weight = base.head.weight
        self.base, self.subset = base, IdSubset(ids, len(weight))
        rows = layout.empty((len(ids), weight.shape[1]), dtype=weight.dtype, device=weight.device)
        self.head = Linear(weight.shape[1], len(ids), bias=False, device="meta")
        self.head.weight = nn.Parameter(rows, requires_grad=False)
        self._fill()
        self.head.again = layout.repacked(rows)

    @property
    def weights_version(self) -> int:
        """The weights version of the base."""
        return self.base.weights_version

    def _fill(self) -> None:
        """Copies the kept rows from the present weights of the base's head."""
        rows = layout.rows_of(self.base.head.weight, self.subset.ids)
        layout.fill(self.head.weight, rows)
        if self.head.again is not None:
            layout.fill(self.head.again, rows)
        self._filled = self.weights_version

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        if self._filled != self.weights_version:
            self._fill()
        hidden: Hidden = self.base(plan, cache)
        return replace(hidden, head=self.project, subset=self.subset)

    def project(self, states: Tensor) -> Tensor:
        """Final norm and head: states [M, E] -> logits [M, N] of the ids."""
        logits = self.head.forward(self.base.norm.forward(states))
        if (cap := self.base.config.logit_cap) is not None:
            logits = (logits / cap).tanh() * cap
        return logits

    @property
    def parameters_unread(self) -> int:
        """Parameters of the base's head that a forward does not read."""
        return (self.subset.size - len(self.subset.ids)) * self.head.weight.shape[1]


def trimmed(model: LanguageModel, ids: Sequence[int]) -> LanguageModel:
    """The model with logits of these ids alone. Raises ModelError for unknown ids, and for heads in parts."""
    stack = plain_decoder(model.decoder)
    if stack is None or stack.placement is not None or model.processes > 1 or model.quantized is not None:
        raise ModelError(
            f"the head of {model.name} cannot be cut: {model.choice or 'it does not run natively'}",
            "use a native model on one device, without quantization",
        )
    wrong = [value for value in ids if not 0 <= value < model.vocab_size]
    twice = [value for value, count in Counter(ids).items() if count > 1]
    if not ids or wrong or twice:
        what = f"not in 0..{model.vocab_size - 1}: {listed(map(str, wrong))}" if wrong else "none at all"
        what = f"listed twice: {listed(map(str, twice))}" if twice and not wrong else what
        raise ModelError(f"the ids that the head of {model.name} is cut to are {what}", "list each id once")
    cut_stack = Trimmed(runner(model.decoder) or stack, torch.tensor(sorted(ids), device=model.device))
    cut = f"head of {len(ids)} of {model.vocab_size} ids"
    result = replace(model, decoder=cut_stack)
    result.choice = (
        f"{model.choice}, {cut}, {bytes_read(result):,} bytes read per step instead of {bytes_read(model):,}"
    )
    result.choice = result.choice.removeprefix(", ")
    return result


def parameters_read(model: LanguageModel) -> int:
    """Parameters that a forward of few tokens reads, without those that a trimmed head leaves out."""
    unread = model.decoder.parameters_unread if isinstance(model.decoder, Trimmed) else 0
    return model.parameters - unread


def bytes_read(model: LanguageModel) -> int:
    """Bytes of weights that a forward of few tokens reads.

    Of a table of embeddings that is not the head's too, only the rows of these tokens are read.
    """
    stack: Any = model.decoder.base if isinstance(model.decoder, Trimmed) else model.decoder
    table, head = stack.embedding, stack.head.weight
    is_tied = table is head if isinstance(head, PackedWeight) else table.data_ptr() == head.data_ptr()
    count = weight_bytes(stack.parameters()) - (0 if is_tied else weight_bytes([table]))
    if isinstance(model.decoder, Trimmed):
        count += weight_bytes([model.decoder.head.weight]) - weight_bytes([head])
    return count


def read_ids(source: str, folder: Path | None) -> list[int]:
    """The ids that `source` names: a JSON list, a safetensors file of one tensor, or the number of commonest ids.

    A number takes this many ids from the beginning of `frequent_ids.json` in the checkpoint's `folder`.
    Raises ModelError for a file that holds no such list, and for a number above its length.
    """
    if not source.isdecimal():
        return _ids_in(Path(source))
    file = Path("no folder") if folder is None else folder / ORDER
    if not file.is_file():
        raise ModelError(
            f"vocab={source} needs {ORDER} in the checkpoint's folder, and there is none",
            "make it with pardec.models.trimmed.frequent_ids, or name a file with vocab=FILE",
        )
    ids = _ids_in(file)
    if not 0 < int(source) <= len(ids):
        raise ModelError(
            f"vocab={source} is outside 1..{len(ids)}, the number of ids in {file}", f"write at most vocab={len(ids)}"
        )
    return ids[: int(source)]


def _ids_in(file: Path) -> list[int]:
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt", device="cpu") as handle:
                (name,) = handle.keys()
                ids = handle.get_tensor(name).tolist()
        else:
            ids = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read as a list of ids: {one_line(error)}", _FORM) from error
    if not isinstance(ids, list) or not all(type(value) is int for value in ids):
        raise ModelError(f"{file} is no list of ids", _FORM)
    return ids


def frequent_ids(texts: Iterable[Sequence[int]], *, always: Iterable[int] = (), most: int | None = None) -> list[int]:
    """At most `most` ids by frequency in `texts`, commonest first, ties by lower id.

    Those of `always`, such as end tokens, come first, in any text or not.

    >>> frequent_ids([[5, 3, 3], [7, 5, 3]], always=[2], most=3)
    [2, 3, 5]
    """
    first = list(dict.fromkeys(always))
    counts = Counter(token for text in texts for token in text)
    rest = sorted(set(counts) - set(first), key=lambda token: (-counts[token], token))
    return (first + rest)[:most]
