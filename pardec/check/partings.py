"""Where two greedy decodings of one prompt part, and why: a tie, rounding, a fault, or a sampler that is not exact.

    tie       both tokens have the same logit in plain decoding
    rounding  their logits differ by no more than the rounding of this model, which is measured
    fault     they differ by more, and the sampler promises plain decoding's tokens
    lossy     the sampler does not promise them

Logits are given as log-probabilities: two of them differ by what the logits differ by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers.logprobs import TokenLogprobs

from ..result import Result

Cause = Literal["tie", "rounding", "fault", "lossy"]
TOP = 20  # likeliest tokens that are recorded at each position
_FLOOR = {torch.float32: 1e-4, torch.float64: 1e-9, torch.float16: 1e-2, torch.bfloat16: 0.1}  # nats
_TIMES = 4  # a gap up to this many times the measured rounding is rounding: two logits, each may err twice as much


@dataclass(frozen=True)
class Parting:
    """The first place of a row where two decodings have different tokens.

    Attributes:
        row: index of the row.
        position: index of the token in the answer.
        tokens: the token of plain decoding, and of the checked one; None where a decoding had ended.
        texts: the same as text; None without a tokenizer.
        plain: logits of the two tokens in plain decoding, as log-probabilities.
        checked: the same in the checked decoding. A token that is not among the likeliest ones has their lowest.
        cause: see above.
        why: the reason for the cause.
    """

    row: int
    position: int
    tokens: tuple[int | None, int | None]
    texts: tuple[str | None, str | None]
    plain: tuple[float, float] | None
    checked: tuple[float, float] | None
    cause: Cause
    why: str


def rounding_of(model: LanguageModel, plain: Result, checked: Result) -> tuple[float, list[float]]:
    """The rounding of `model` in nats, and the largest difference of each row's recorded logits.

    An autoregressive model of text reads each answer in one forward without a cache: the rounding is the difference
    from plain decoding, and the rows' the difference from the checked one. For others the rounding is 0, that is, the
    dtype's least bound, and rows are compared while both decodings commit the same tokens in the same order.
    """
    if not model.decoding_config.masked and plain.grid is None:
        return max(_from_whole_forward(model, plain)), _from_whole_forward(model, checked)
    rows = range(len(plain.tokens))
    return 0.0, [_between(plain, checked, row) for row in rows]


def bound(model: LanguageModel, rounding: float) -> float:
    """The largest difference in nats that counts as rounding."""
    return max(_TIMES * rounding, _FLOOR[model.dtype])


def parting(plain: Result, checked: Result, row: int, *, exact: bool, bound: float, furthest: float) -> Parting | None:
    """Where row `row` parts; None if both decodings have the same tokens and end for the same reason.

    `furthest` is the row's largest difference of logits.
    """
    one, other = plain.tokens[row], checked.tokens[row]
    if one == other and plain.finish[row] == checked.finish[row]:
        return None
    length = min(len(one), len(other))
    different = [at for at in range(length) if one[at] != other[at]]
    steps = [result.step_map[row] for result in (plain, checked)]
    at = min(different, key=lambda at: (min(int(step[at]) for step in steps), at), default=length)
    tokens = tuple(row[at] if at < len(row) else None for row in (one, other))
    texts = tuple(None if token is None or plain.tokenizer is None else _text(plain, token) for token in tokens)
    values = [_values(result, row, at, tokens) if different else None for result in (plain, checked)]
    cause: Cause = "lossy"
    why = "the sampler does not promise plain decoding's tokens"
    if exact and (values[0] is None or values[1] is None):
        cause, why = "fault", "one decoding ends and the other does not"
    elif exact and not plain.trace.accepted and _common(plain, checked, row) < min(int(step[at]) for step in steps):
        cause, why = _of_order(furthest, bound)
    elif exact:
        gap, own = (first - second for first, second in filter(None, values))
        cause, why = _of_gap(gap, own, bound, furthest)
    return Parting(
        row=row,
        position=at,
        tokens=(tokens[0], tokens[1]),
        texts=(texts[0], texts[1]),
        plain=values[0],
        checked=values[1],
        cause=cause,
        why=why,
    )


def _of_gap(gap: float, own: float, bound: float, furthest: float) -> tuple[Cause, str]:
    """The cause where both decodings saw the same tokens: plain decoding prefers its token by `gap`."""
    if gap == 0:
        return "tie", "both tokens have the same logit"
    if abs(gap) <= bound:
        return "rounding", f"their logits differ by {gap:.2g}, and rounding reaches {bound:.2g}"
    if own > bound:
        return (
            "fault",
            f"its own logits prefer the other token by {own:.2g}: it accepted a token that it should have rejected",
        )
    return "fault", f"its logits differ from the model's by {max(furthest, abs(gap - own)):.2g}"


def _of_order(furthest: float, bound: float) -> tuple[Cause, str]:
    """The cause where the two decodings had committed positions in another order before."""
    if furthest <= bound:
        return "rounding", "before it, positions were committed in another order, with equal logits"
    return "fault", f"its logits differ from the model's by {furthest:.2g}"


def _values(result: Result, row: int, at: int, tokens: tuple[int | None, ...]) -> tuple[float, float]:
    """The log-probabilities of two tokens at a position."""
    assert result.logprobs is not None, "they were requested"
    here: TokenLogprobs = result.logprobs[row]
    ids, top = here.ids[at].tolist(), here.top[at].tolist()
    values = [top[ids.index(token)] if token in ids else min(top) for token in tokens]
    if (own := result.tokens[row][at]) in tokens:
        values[tokens.index(own)] = float(here.own[at])
    return values[0], values[1]


def _from_whole_forward(model: LanguageModel, result: Result) -> list[float]:
    """For each row, the largest difference between recorded log-probabilities and those of one whole forward."""
    found = []
    assert result.token_logprobs is not None, "they were requested"
    for row, start in enumerate(result.prompts):
        own, count = result.token_logprobs[row], len(result.tokens[row])
        if not count:
            found.append(0.0)
            continue
        ids = result.sequences[row, : start + count]
        outputs = torch.arange(start - 1, start + count - 1, device=model.device)
        with torch.inference_mode():
            hidden = model.forward(Plan.full(ids[None].to(model.device), model.visible()), None)
            logprobs = hidden.logits(outputs[None])[0].float().log_softmax(-1).cpu()
        whole = logprobs.gather(1, ids[start:, None])[:, 0].numpy()
        found.append(float(np.nanmax(np.abs(whole - own), initial=0.0)))
    return found


def _common(plain: Result, checked: Result, row: int) -> int:
    """The number of the first steps in which both decodings committed the same tokens."""
    one, other = plain.step_map[row], checked.step_map[row]
    length = min(len(one), len(other))
    tokens = np.array(plain.tokens[row][:length]) == np.array(checked.tokens[row][:length])
    parted = ~tokens | (one[:length] != other[:length])
    firsts = np.minimum(one[:length], other[:length])[parted]
    return int(firsts.min(initial=int(max(one.max(initial=0), other.max(initial=0))) + 1))


def _between(plain: Result, checked: Result, row: int) -> float:
    """The largest difference of recorded log-probabilities where both decodings saw and committed the same tokens."""
    assert plain.token_logprobs is not None, "they were requested"
    assert checked.token_logprobs is not None, "they were requested"
    one, other = plain.token_logprobs[row], checked.token_logprobs[row]
    length = min(len(one), len(other))
    if plain.trace.accepted:  # decoded from left to right
        same = np.cumprod(np.array(plain.tokens[row][:length]) == np.array(checked.tokens[row][:length])).astype(bool)
    else:
        steps, common = plain.step_map[row][:length], _common(plain, checked, row)
        same = (steps < common) & (steps == checked.step_map[row][:length])
    return float(np.nanmax(np.abs(one[:length] - other[:length])[same], initial=0.0))


def _text(result: Result, token: int) -> str:
    return str(result.tokenizer.decode([token]))
