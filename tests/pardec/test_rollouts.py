"""`Model.rollouts`: rows of `generate`, in the layouts that trainers read."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError

PROMPTS = ["Tom has 8 cups. He loses 3. How many cups does Tom have now?", "Ann has 4 cups."]


@pytest.fixture(scope="module", params=["tiny-dream", "tiny-llama"])
def model(request: pytest.FixtureRequest) -> pardec.Model:
    return pardec.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def rollouts(model: pardec.Model) -> pardec.Rollouts:
    return model.rollouts(PROMPTS, n=3, temperature=1.5, max_new_tokens=9, seed=4, reward=lambda _, text: len(text) % 5)


def test_rows_are_those_of_generate_at_temperature_1_by_default(model: pardec.Model) -> None:
    made = model.rollouts(PROMPTS, n=2, max_new_tokens=6, seed=3)
    alone = model.generate(PROMPTS, num_return_sequences=2, temperature=1.0, max_new_tokens=6, seed=3, logprobs=0)
    assert made.result.tokens == alone.tokens
    assert made.rewards is made.advantages is None
    with pytest.raises(SpecError, match="none were computed"):
        made.to_dllm_rl()


def test_the_arrays_of_verl_pad_prompts_on_the_left(model: pardec.Model, rollouts: pardec.Rollouts) -> None:
    arrays, result = rollouts.to_verl(pad_id=7), rollouts.result
    width, longest = arrays["responses"].shape[1], arrays["prompts"].shape[1]
    assert len({len(model.tokenizer(text)["input_ids"]) for text in PROMPTS}) == 2
    for row, tokens in enumerate(result.tokens):
        prompt = model.tokenizer(PROMPTS[row // 3])["input_ids"]
        blank, rest = longest - len(prompt), width - len(tokens)
        assert arrays["input_ids"][row].tolist() == [7] * blank + prompt + tokens + [7] * rest
        assert arrays["attention_mask"][row].tolist() == [0] * blank + [1] * (len(prompt) + len(tokens)) + [0] * rest
        assert arrays["position_ids"][row, blank:].tolist() == list(range(len(prompt) + width))
        assert not arrays["position_ids"][row, :blank].any()
        assert arrays["response_mask"][row].tolist() == [1] * len(tokens) + [0] * rest
        assert arrays["step_map"][row].tolist() == [*result.step_map[row].tolist(), *[-1] * rest]
        own = result.token_logprobs[row]  # type: ignore[index]
        np.testing.assert_allclose(arrays["rollout_log_probs"][row], [*own, *[0] * rest])
        scores = [0.0] * width
        scores[len(tokens) - 1] = float(len((result.text or [])[row]) % 5)
        assert arrays["token_level_scores"][row].tolist() == scores


def test_rows_of_dllm_rl_have_the_normalized_reward_of_their_group(
    model: pardec.Model, rollouts: pardec.Rollouts
) -> None:
    rows = json.loads(json.dumps(rollouts.to_dllm_rl()))
    assert [row["prompt"].count(PROMPTS[at // 3]) for at, row in enumerate(rows)] == [1] * 6
    rewards = [len(text) % 5 for text in rollouts.result.text or []]
    for at, row in enumerate(rows):
        group = rewards[at // 3 * 3 :][:3]
        mean = sum(group) / 3
        deviation = (sum((reward - mean) ** 2 for reward in group) / 3) ** 0.5
        assert row["reward"] == pytest.approx((rewards[at] - mean) / deviation if deviation else 0)
        assert row["step_map"] == rollouts.result.step_map[at].tolist()
        assert len(row["step_map"]) == len(row["response_ids"])
        assert row["response"] == model.tokenizer.decode(row["response_ids"])
    assert any(row["reward"] for row in rows)


def test_equal_rewards_are_no_advantage(model: pardec.Model) -> None:
    made = model.rollouts(PROMPTS[0], n=2, max_new_tokens=2, reward=lambda prompt, text: float(prompt == PROMPTS[0]))
    assert made.rewards.tolist() == [1, 1]
    assert made.advantages.tolist() == [0, 0]


def test_what_cannot_work_is_refused_by_name(model: pardec.Model) -> None:
    with pytest.raises(SpecError, match="reward of row 0 is nan"):
        model.rollouts("Tom", n=1, max_new_tokens=1, reward=lambda *_: float("nan"))
    with pytest.raises(SpecError, match="rollouts takes no num_return_sequences"):
        model.rollouts("Tom", num_return_sequences=2)
    with pytest.raises(SpecError, match="rollouts always record log-probabilities"):
        model.rollouts("Tom", logprobs=None)
    with pytest.raises(SpecError, match="does not write text"):
        pardec.load("tiny-llamagen", device="cpu").rollouts("a small red circle")
