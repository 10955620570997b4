"""Several answers to each prompt, with what a trainer of policies needs, in the layouts of two frameworks.

dLLM-RL (TraceRL), https://arxiv.org/abs/2509.06949, trains on a JSON list of prompts, responses, step maps and rewards.
DARE, https://github.com/yjyddq/DARE, and verl, on which it builds, take a batch of tensors: prompts padded on the left,
responses on the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pardec.models.errors import SpecError

from .result import Result

Reward = Callable[[str, str], float]  # (prompt, answer) as texts -> reward
REWARD = "reward(prompt, text) returns a finite number"


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Answers to prompts; row `n * i + j` is answer `j` to prompt `i`.

    Attributes:
        result: the tokens, texts, step map and log-probabilities of all rows; the last are those of the sampled tokens
            by the model's own distribution at the forward that committed each.
        n: answers per prompt.
        rewards: [rows] float64; None without a reward function.
    """

    result: Result
    n: int
    rewards: np.ndarray | None = None

    @property
    def advantages(self) -> np.ndarray | None:
        """[rows] float64: rewards minus their prompt's mean, over the standard deviation; 0 where all are equal."""
        if self.rewards is None:
            return None
        groups = self.rewards.reshape(-1, self.n)
        spread = groups.std(1, keepdims=True)
        centred = groups - groups.mean(1, keepdims=True)
        values: np.ndarray = np.where(spread > 0, centred / np.where(spread > 0, spread, 1), 0).reshape(-1)
        return values

    def to_dllm_rl(self) -> list[dict[str, Any]]:
        """One JSON object per row: prompt, response, step_map, reward.

        Texts keep their special tokens, as dLLM-RL's own rollouts do. `step_map` has the forward of each token of the
        response, from 0, and `reward` is the advantage, which dLLM-RL computes in the same way. `response_ids` are the
        tokens, for a check that the trainer's tokenizer splits the text as they are.

        Raises SpecError without rewards.
        """
        if (advantages := self.advantages) is None:
            raise SpecError("dLLM-RL trains on rewards, and none were computed", hint="pass reward= to model.rollouts")
        return [
            {
                "prompt": prompt,
                "response": self._decoded(tokens),
                "step_map": steps.tolist(),
                "reward": advantage,
                "response_ids": tokens,
            }
            for prompt, tokens, steps, advantage in zip(
                map(self._decoded, self._prompts),
                self.result.tokens,
                self.result.step_map,
                advantages.tolist(),
                strict=True,
            )
        ]

    def to_verl(self, *, pad_id: int = 0) -> dict[str, np.ndarray]:
        """The arrays of DARE's and verl's batches; `DataProto.from_dict` takes them as tensors.

        Returns:
            prompts [B, P] int64, padded on the left; responses [B, T] int64, padded on the right; input_ids,
            attention_mask and position_ids [B, P + T] int64 of both; response_mask [B, T] int64; step_map [B, T] int64,
            -1 after a row; rollout_log_probs [B, T] float32, 0 after a row; with rewards, token_level_scores [B, T]
            float32, a row's reward at its last token and 0 elsewhere.
        """
        right = self.result.to_arrays(pad_id=pad_id)
        prompts = _left([np.array(ids, dtype=np.int64) for ids in self._prompts], pad_id)
        inside = _left([np.ones(len(ids), dtype=np.int64) for ids in self._prompts], 0)
        mask = right["mask"].astype(np.int64)
        before = np.maximum(inside.cumsum(1) - 1, 0)
        after = inside.sum(1, keepdims=True) + np.arange(mask.shape[1])
        values = {
            "prompts": prompts,
            "responses": right["tokens"],
            "input_ids": np.concatenate([prompts, right["tokens"]], 1),
            "attention_mask": np.concatenate([inside, mask], 1),
            "position_ids": np.concatenate([before, after], 1),
            "response_mask": mask * (right["step_map"] >= 0),  # without given tokens
            "step_map": right["step_map"],
            "rollout_log_probs": np.nan_to_num(right["token_logprobs"], nan=0.0).astype(np.float32),
        }
        if self.rewards is not None:
            scores = np.zeros(mask.shape, dtype=np.float32)
            rows = np.flatnonzero(mask.sum(1))
            scores[rows, mask.sum(1)[rows] - 1] = self.rewards[rows]
            values["token_level_scores"] = scores
        return values

    @property
    def _prompts(self) -> list[list[int]]:
        pairs = zip(self.result.sequences.tolist(), self.result.prompts, strict=True)
        return [row[:end] for row, end in pairs]

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.result.tokenizer.decode(ids, skip_special_tokens=False))


def rewarded(result: Result, n: int, reward: Reward | None) -> Rollouts:
    """The rollouts of a result. Raises SpecError for a reward that is not a finite number."""
    plain = Rollouts(result, n)
    if reward is None:
        return plain
    values = []
    for row, (ids, text) in enumerate(zip(plain._prompts, result.text or (), strict=True)):
        prompt = str(result.tokenizer.decode(ids, skip_special_tokens=True))
        value = reward(prompt, text)
        try:
            finite = not isinstance(value, str) and math.isfinite(float(value))
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise SpecError(f"reward of row {row} is {value!r}", hint=REWARD)
        values.append(float(value))
    return Rollouts(result, n, np.array(values))


def _left(rows: Sequence[np.ndarray], blank: int) -> np.ndarray:
    """Rows [n] padded on the left to [B, longest]."""
    whole = np.full((len(rows), max(map(len, rows))), blank, dtype=np.int64)
    for target, row in zip(whole, rows, strict=True):
        target[len(target) - len(row) :] = row
    return whole
