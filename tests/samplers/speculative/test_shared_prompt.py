"""Rows with a common beginning: it is fed once and stored once, and results equal those of separate rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pardec
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden
from pardec.samplers import registry
from pardec.samplers.request import Request
from pardec.samplers.speculative import forward_features as shared_prompt
from pardec.samplers.speculative.draft.draft_heads import HeadsState
from pardec.samplers.speculative.loop import VerifyLoop
from tests.models.kernels import test_attention_parts
from tests.models.traced import captured
from tests.samplers.ar_toys import joint, plain_greedy, prompts, request, rows, run, toy_ar
from tests.samplers.module_files import random_modules

VOCAB = 8
PROMPT = prompts([40], seed=2, vocab=VOCAB)[0]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt, "LEAST_SLOTS", 0)


def loop_of(model: LanguageModel, asked: Request, spec: str = "sequential") -> VerifyLoop:
    return VerifyLoop(model, registry.resolve(spec, "ar", sampling=asked.temperature > 0), asked)


def shares(model: LanguageModel, asked: Request) -> int:
    return loop_of(model, asked).forward.cache.offset


@pytest.mark.parametrize("spec", ["sequential", "lookup", "jacobi", "recycling", "earlyexit:layers=1+beam"])
def test_greedy_rows_are_those_of_a_whole_forward_each(spec: str) -> None:
    model, new = toy_ar(0, VOCAB), [20, 3, 11, 1]
    shared = run(model, spec, [PROMPT] * 4, new)
    assert rows(shared) == [plain_greedy(model, PROMPT, count) for count in new]
    assert shared.nfe == run(model, spec, [PROMPT] * 4, new, share_prompt=False).nfe


@pytest.mark.parametrize("spec", ["sequential", "lookup", "earlyexit:layers=1+beam"])
def test_greedy_rows_after_a_common_beginning_are_those_of_a_whole_forward_each(spec: str) -> None:
    model, new = toy_ar(0, VOCAB), [20, 3, 11, 1]
    texts = [[*PROMPT, *end] for end in ([1], [2, 5, 6], [], [3, 3])]
    shared = run(model, spec, texts, new)
    assert rows(shared) == [plain_greedy(model, text, count) for text, count in zip(texts, new, strict=True)]
    assert shared.tokens_fed[0] == run(model, spec, texts, new, share_prompt=False).tokens_fed[0]
    assert len(shared.trace.fed[1][0]) == len(texts[1]) - (len(PROMPT) - 1)


def exact_in_float64() -> None:
    model = toy_ar(3, VOCAB, dtype=torch.float64)
    new = [40, 7, 23, 31, 40]
    shared, plain = (
        run(model, "lookup", [PROMPT] * 5, new, temperature=1.0, share_prompt=share) for share in (True, False)
    )
    assert (shared.tokens == plain.tokens).all()
    assert np.allclose(shared.trace.commit_score, plain.trace.commit_score, rtol=1e-5)
    assert shared.tokens_fed[0] == plain.tokens_fed[0]
    assert shared.tokens_fed[1:] == tuple(fed - len(PROMPT) for fed in plain.tokens_fed[1:])


@pytest.mark.seeds("arXiv:2402.05099")
def test_samples_of_a_shared_prompt_are_the_same_in_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydragen: attention in two parts is exact, the prompt is fed once, and K/V take P + n s slots, not n (P + s)."""
    exact_in_float64()
    test_attention_parts.test_two_parts_are_one_attention("ragged", 6, 2, torch.float64, True)
    all_rows_say_how_much_is_shared()
    drafters_read_the_shared_states_before_each_row_s_own()
    test_greedy_rows_after_a_common_beginning_are_those_of_a_whole_forward_each("sequential")
    model, new = toy_ar(5, VOCAB, dtype=torch.float64), 12
    for count in (2, 8):
        asked = [request([PROMPT] * count, new, temperature=1.0, share_prompt=share) for share in (True, False)]
        caches = [loop_of(model, each).forward.cache for each in asked]
        slots = [(len(PROMPT) + 1) + count * (new + 1), count * (len(PROMPT) + new + 1)]
        assert caches[0].nbytes * slots[1] == caches[1].nbytes * slots[0]
        shared, plain = (
            run(model, "sequential", [PROMPT] * count, new, temperature=1.0, share_prompt=share)
            for share in (True, False)
        )
        assert (shared.tokens == plain.tokens).all()
        assert sum(plain.tokens_fed) - sum(shared.tokens_fed) == (count - 1) * len(PROMPT)
    monkeypatch.undo()  # from here on with the default
    for size in (767, 768):  # two rows save as many slots
        assert bool(shares(toy_ar(0, VOCAB), request([prompts([size], vocab=VOCAB)[0]] * 2, 3))) == (size == 768)


def test_rows_are_drawn_from_the_models_distribution() -> None:
    """All continuations of two tokens, by enumeration, against 3,000 rows that share their prompt."""
    model, count = toy_ar(1, 4), 3000
    prompt = prompts([9], seed=1, vocab=4)[0]
    result = run(model, "lookup", [prompt] * count, 2, temperature=1.0)
    index = result.tokens[:, 9] * 4 + result.tokens[:, 10]
    truth = joint(model, prompt, 2).ravel()
    chi = ((np.bincount(index, minlength=16) - count * truth) ** 2 / (count * truth)).sum()
    assert chi < 15 + 5 * np.sqrt(30)


def test_what_the_cache_holds() -> None:
    model, new = toy_ar(0, VOCAB), 6
    shared, plain = (
        loop_of(model, request([PROMPT] * 5, new, share_prompt=share)).forward.cache for share in (True, False)
    )
    slot = 2 * 2 * 8 * 4  # K and V of two layers of one head of 8 dimensions
    assert plain.nbytes == slot * 5 * (len(PROMPT) + new + 1)
    assert shared.nbytes == slot * ((len(PROMPT) + 1) + 5 * (new + 1))
    assert shared.capacity == plain.capacity


def test_when_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_ar(0, VOCAB)
    other = [*PROMPT[:-1], (PROMPT[-1] + 1) % VOCAB]
    assert shares(model, request([PROMPT] * 2, 3)) == len(PROMPT)
    assert not shares(model, request([PROMPT], 3))
    assert shares(model, request([PROMPT, other], 3)) == len(PROMPT) - 1
    assert shares(model, request([PROMPT, PROMPT[:-1]], 3)) == len(PROMPT) - 2  # each keeps a token of its own
    assert not shares(model, request([PROMPT, [(PROMPT[0] + 1) % VOCAB, *PROMPT[1:]]], 3))
    assert loop_of(model, request([PROMPT, other], 3), "recycling").forward.cache.offset == 0  # reads whole prompts
    assert not shares(model, request([PROMPT] * 2, 0))
    assert shares(model, request([PROMPT] * 2, [0, 3])) == len(PROMPT)
    assert not shares(model, request([PROMPT] * 2, 3, share_prompt=False))
    assert not shares(captured(toy_ar(0, VOCAB)), request([PROMPT] * 2, 3))
    monkeypatch.setattr(shared_prompt, "LEAST_SLOTS", 2 * len(PROMPT))
    assert not shares(model, request([PROMPT] * 2, 3))
    assert shares(model, request([PROMPT] * 3, 3))


def test_rows_without_room_leave_before_the_prompt_is_fed() -> None:
    model, new = toy_ar(0, VOCAB), [0, 5, 0, 8]
    assert rows(run(model, "lookup", [PROMPT] * 4, new)) == [plain_greedy(model, PROMPT, count) for count in new]


@pytest.mark.parametrize("spec", ["lookup", "recycling"])
def test_beside_a_prefix_cache(spec: str) -> None:
    """The prompt is read from the prefix cache and stored in it, and so are the answers."""
    model = toy_ar(0, VOCAB)
    plain = rows(run(model, spec, [PROMPT] * 3, 30, temperature=1.0, share_prompt=False))
    cache = model.cache_prefixes(1 << 20)
    assert cache is not None
    first, second = (run(model, spec, [PROMPT] * 3, 30, temperature=1.0) for _ in range(2))
    assert rows(first) == rows(second) == plain
    assert first.reused == (0, 0, 0)
    assert second.reused == ((32, 0, 0) if spec == "lookup" else (0, 0, 0))  # recycling reads logits of the prompt
    assert second.tokens_fed[0] == first.tokens_fed[0] - second.reused[0]
    longer = [row[:-1] for row in plain]  # goes on after the answers
    expected = [plain_greedy(toy_ar(0, VOCAB), row, 4) for row in longer]
    result = run(model, "lookup", longer, 4)
    assert rows(result) == expected
    assert result.reused == (64, 64, 64)


def test_samples_of_a_prompt_share_it_and_a_server_s_rows_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = []
    begin = VerifyLoop.__init__

    def spy(self: VerifyLoop, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        offsets.append(self.forward.cache.offset)

    monkeypatch.setattr(VerifyLoop, "__init__", spy)
    model = pardec.load("tiny-llama", device="cpu")
    question = "Tom has 18 cups. He loses 4. How many cups does Tom have now?"
    arguments = {"temperature": 0.8, "num_return_sequences": 4, "max_new_tokens": 24, "seed": 5}
    shared = model.generate(question, **arguments)
    assert offsets == [shared.prompts[0]]
    served = list(model.serve_batch([question], batch_size=4, **arguments))
    assert offsets[1:] == [0] * (len(offsets) - 1)
    assert sorted(row.tokens for row in served) == sorted(shared.tokens)
    monkeypatch.setattr(shared_prompt, "LEAST_SLOTS", 10**6)
    plain = model.generate(question, **arguments)
    assert offsets[-1] == 0
    assert plain.tokens == shared.tokens
    assert plain.nfe == shared.nfe
    assert shared.tokens_fed[1] == plain.tokens_fed[1] - shared.prompts[0]


def drafters_read_the_shared_states_before_each_row_s_own() -> None:
    """The states after each prompt's last token, for heads, are those of rows that share nothing."""
    model, texts, seen = toy_ar(0, VOCAB), [[*PROMPT, *end] for end in ([1], [2, 5, 6, 1, 1], [])], list[torch.Tensor]()
    read = HeadsState.read_prompt

    def watched(self: HeadsState, rows: np.ndarray, hidden: Hidden) -> None:
        read(self, rows, hidden)
        seen.append(self.states)

    with random_modules(), pytest.MonkeyPatch.context() as patches:
        patches.setattr(HeadsState, "read_prompt", watched)
        last = []
        for share in (True, False):
            run(model, "medusa:name=toy,k=2", texts, 3, share_prompt=share)
            last.append(seen[-1])
    assert torch.allclose(*last, atol=1e-5)
    assert not torch.allclose(last[0][:1], last[0][1:], atol=1e-2), "rows differ"


def all_rows_say_how_much_is_shared() -> None:
    """The third row leaves the others after 30 of 40 tokens, and so 30 are shared."""
    model, texts = toy_ar(0, VOCAB), [[*PROMPT], [*PROMPT], [*PROMPT]]
    texts[2][30] = (PROMPT[30] + 1) % VOCAB
    assert shares(model, request(texts, 3)) == 30
    assert rows(run(model, "sequential", texts, [9] * 3)) == [plain_greedy(model, text, 9) for text in texts]
