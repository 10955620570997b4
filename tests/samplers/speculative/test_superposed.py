"""Superposed decoding compared with the rule of its page without a cache, and with beam search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pardec
from pardec.api import Model
from pardec.cli import run as command
from pardec.models.errors import SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.speculative.texts.prompt_decode import decode
from pardec.samplers.speculative.texts.superposed import Ngrams, Superposed
from tests.samplers.ar_toys import logits, plain_greedy, request, rows, run, toy_ar

GIVEN, COUNTS = [[5, 6, 7, 5, 6], [9, 4, 9], [3]], [14, 9, 12]


def frequency(corpus: Sequence[int], text: Sequence[int], token: int, weights: Sequence[float]) -> float:
    """The n-gram model of the page, counted again at every call."""
    total = 0.0
    for size, weight in enumerate(weights, 1):
        context = list(text[len(text) - size :]) if size <= len(text) else None
        after = [corpus[at + size] for at in range(len(corpus) - size) if list(corpus[at : at + size]) == context]
        total += weight * after.count(token) / len(after) if after else 0
    return total


def naive(
    model: LanguageModel, prompt: list[int], new: int, method: Superposed, corpus: Sequence[int], stops: Sequence[int]
) -> list[list[int]]:
    """The texts of one prompt; every step runs all inputs again, as vectors."""
    table = model.decoder.embedding
    inputs = [table[token] for token in prompt]
    going: list[tuple[float, list[int]]] = [(0.0, prompt)]
    ended: list[tuple[float, list[int]]] = []
    for _ in range(new):
        tokens = torch.full((1, len(inputs)), -1)
        order = torch.arange(len(inputs))[None]
        soft = torch.stack(inputs)[None]
        lengths = torch.tensor([len(inputs)])
        raw = model.decoder(Plan(tokens, order, order, Visible.causal(), lengths, order, soft=soft)).logits()
        scaled = raw[0, -1] / method.temperature
        best = sorted(range(len(scaled)), key=lambda v: (-float(scaled[v]), v))[: method.tokens or 3 * method.k]
        p = scaled[best].log_softmax(-1).tolist()
        candidates = []
        for score, text in going:
            for token, value in zip(best, p, strict=True):
                g = frequency(corpus, text, token, method.by_size)
                gain = (1 - method.alpha) * value + (method.alpha * log(g) if g else -method.penalty)
                candidates.append((score + gain, [*text, token]))
        candidates.sort(key=lambda candidate: -candidate[0])
        ended += [one for one in candidates[: method.k] if one[1][-1] in stops]
        going = [one for one in candidates if one[1][-1] not in stops][: method.k]
        ended.sort(key=lambda one: -one[0])
        if len(ended) >= method.k and going[0][0] <= ended[method.k - 1][0]:
            break
        shares = [exp(score - going[0][0]) for score, _ in going]
        inputs.append(sum(s / sum(shares) * table[text[-1]] for s, (_, text) in zip(shares, going, strict=True)))
    return [text for _, text in [*ended, *going][: method.k]]


def bigram_model(folder: Path, vocab: int = 24) -> transformers.LlamaForCausalLM:
    """Logits are a random linear function of the last input only, so that a superposition of tokens can be read."""
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=vocab, **sizes))
    weights = np.random.RandomState(0).standard_normal((vocab, vocab)) * 1.5 / 32**0.5
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        network.model.embed_tokens.weight.copy_(torch.eye(vocab, 32))
        network.lm_head.weight.zero_()[:, :vocab] = torch.from_numpy(weights)
    network.save_pretrained(folder)
    return network.eval()


@pytest.mark.seeds("arXiv:2405.18400")
def test_k_texts_cost_what_one_does_and_are_nearly_those_of_beam_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """k=1 is greedy decoding; for k=2 and 3 the mean NLL is within 20% of that of transformers' beam search."""
    for method in (Superposed(), Superposed(k=2, tokens=4, temperature=1.0, alpha=0.3, penalty=3.0)):
        texts_are_those_of_the_plain_rule_in_a_ragged_batch_and_alone(method)
    candidates_and_shares_by_hand()
    assert Ngrams([5, 6, 5, 7], (0.5,)).probabilities([6, 5], [6, 7, 8]).tolist() == [0.25, 0.25, 0]
    test_rows_of_a_prompt_are_its_texts_and_its_pass_is_counted_once()
    beams, new = bigram_model(tmp_path), 12
    model, given = load(tmp_path, device="cpu"), [[1, 2, 3], [4, 5], [6, 7, 8, 9], [0, 3], [9, 1], [12], [20, 5]]
    sampled = run(model, "sequential", [[at % 24] for at in range(60)], 60, temperature=1.0)
    calls: list[tuple[int, ...]] = []
    plain = LanguageModel.run
    monkeypatch.setattr(
        LanguageModel, "run", lambda self, plan, cache: (calls.append(plan.tokens.shape), plain(self, plan, cache))[1]
    )

    def texts(k: int) -> list[list[int]]:
        calls.clear()
        wanted = request(
            [row for row in given for _ in range(k)],
            new,
            samples=tuple(range(k)) * len(given),
            corpus=tuple(chain(*rows(sampled))),
        )
        *_, last = decode(model, Superposed(k=k), wanted, steps=False)
        assert calls == [(len(given), 4), *[(len(given), 1)] * (new - 1)]  # one row a prompt, one query a token
        return rows(last)

    def nll(some: Sequence[Sequence[int]]) -> float:
        distributions = [logits(model, [text])[0, -new - 1 : -1].log_softmax(-1) for text in some]
        each = [d.gather(-1, torch.tensor(t[-new:])[:, None]) for d, t in zip(distributions, some, strict=True)]
        return -float(torch.cat(each).mean())

    assert texts(1) == [plain_greedy(model, prompt, new) for prompt in given]
    for k in (2, 3):
        options = {"num_beams": k, "num_return_sequences": k, "max_new_tokens": new, "do_sample": False}
        options |= {"eos_token_id": None, "pad_token_id": 0}
        best = [text for row in given for text in beams.generate(torch.tensor([row]), **options).tolist()]
        assert len(set(map(tuple, texts(k)))) == k * len(given)
        assert nll(best) < nll(texts(k)) < 1.2 * nll(best) < 0.7 * nll(rows(sampled))


def texts_are_those_of_the_plain_rule_in_a_ragged_batch_and_alone(method: Superposed) -> None:
    model, k = toy_ar(3, vocab=11, sharp=0.5), method.k
    corpus = tuple(np.random.RandomState(1).randint(0, 11, 300).tolist())
    options: dict[str, Any] = {"corpus": corpus, "stop_ids": (2, 8)}
    given, counts = ([row for row in each for _ in range(k)] for each in (GIVEN, COUNTS))
    *_, done = decode(model, method, request(given, counts, samples=tuple(range(k)) * 3, **options))
    expected = [naive(model, prompt, new, method, corpus, (2, 8)) for prompt, new in zip(GIVEN, COUNTS, strict=True)]
    assert rows(done) == list(chain(*expected))
    assert "stop" in done.reasons
    for row in range(len(given)):
        wanted = request([given[row]], [counts[row]], samples=(row % k,), **options)
        *_, alone = decode(model, method, wanted)
        assert rows(alone) == [rows(done)[row]]
        assert alone.nfe[0] == done.nfe[row]


def test_rows_of_a_prompt_are_its_texts_and_its_pass_is_counted_once() -> None:
    model = Model(toy_ar(3, vocab=11, sharp=0.5))
    options: dict[str, Any] = {"sampler": "superposed:k=3", "max_new_tokens": 6, "num_return_sequences": 3}
    result = model.generate(input_ids=GIVEN, stop_ids=[], **options)
    assert len(result.tokens) == 9
    assert len({tuple(tokens) for tokens in result.tokens[:3]}) == 3
    assert result.nfe == [6] * 9
    assert result.forward_rows == [6, 0, 0] * 3
    assert result.tokens_fed == [10, 0, 0, 8, 0, 0, 6, 0, 0]
    assert result.trace.steps[1][2].positions == (7,)
    assert result.exact == "relaxed"
    served = {(row.index, row.sample): row.tokens for row in model.serve_batch(
        ({"input_ids": row} for row in GIVEN), batch_size=4, stop_ids=[], **options
    )}  # fmt: skip
    assert served == {divmod(at, 3): tokens for at, tokens in enumerate(result.tokens)}
    one = model.generate(input_ids=GIVEN, stop_ids=[], sampler="superposed:k=3", max_new_tokens=6)
    assert one.tokens == result.tokens[::3]  # the best of each


def test_no_token_is_final_before_the_pass_ends() -> None:
    model = Model(toy_ar(3, vocab=11, sharp=0.5))
    arguments: dict[str, Any] = {"sampler": "superposed:k=3", "max_new_tokens": 8, "num_return_sequences": 3}
    steps, ends, visible = 0, {}, np.zeros((3, 13), dtype=np.int64)
    for event in model.stream(input_ids=[GIVEN[0]], stop_ids=[], **arguments):
        if isinstance(event, pardec.Step):
            steps += 1
            assert event.settled.tolist() == [5] * 3
            assert event.revised is not None
            visible = np.where(event.committed, event.tokens, visible)
            known = ~event.open & (np.arange(13) >= 5)
            assert (visible == event.tokens)[known].all()
            assert not (event.revised & ~event.committed).any()
        elif isinstance(event, pardec.RowFinished):
            ends[event.row] = event.tokens.tolist()
    assert steps == 8
    assert [ends[row][5:] for row in range(3)] == model.generate(
        input_ids=[GIVEN[0]], stop_ids=[], **arguments
    ).tokens  # fmt: skip


def test_the_command_counts_n_grams_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Tom has 3 cups. Tom has 4 cups and gives 3 cups to Ann.")
    more, texts = "k=2,alpha=0.9,temperature=1,tokens=60", []
    for sampler in (f"superposed:{more}", f'superposed:{more},corpus="{corpus}"'):
        given = ["generate", "tiny-llama", "-p", "Tom has 3", "-s", sampler, "-n", "8", "--num-return-sequences", "2"]
        assert command([*given, "--json", "--device", "cpu", "--quiet"]) == 0
        texts.append([row["text"] for row in json.loads(capsys.readouterr().out)["rows"]])
    assert [len(set(each)) for each in texts] == [2, 2]
    assert [text.startswith("cups. Tom has 4") for (text, _) in texts] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"temperature": 0.5}, "is for sampling"),
        ({"num_return_sequences": 4}, "writes 3 texts per prompt and 4"),
        ({"sampler": "superposed+lookup"}, "cannot be combined with lookup"),
        ({"sampler": "superposed:k=0"}, "k must be at least 1"),
        ({"sampler": "superposed:tokens=2"}, "tokens must be at least 3"),
        ({"sampler": "superposed:weights=x"}, "weights must be values joined"),
        ({"sampler": "superposed:temperature=0"}, "temperature must be above 0"),
        ({"sampler": "superposed:corpus=no.txt"}, "corpus=no.txt"),
        ({"allowed": [[4, 7]] * 5}, "does not support allowed"),
        ({"repetition_penalty": 1.2}, "does not support logits processors"),
        ({"logprobs": 1}, "does not support logprobs"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_forward(arguments: dict[str, Any], words: str) -> None:
    model = Model(toy_ar(3, vocab=11))
    with pytest.raises(SpecError, match=words):
        model.prepare(input_ids=[[4, 5]], **{"sampler": "superposed:k=3", "max_new_tokens": 5} | arguments)


def candidates_and_shares_by_hand() -> None:
    """Logits 0, ln 3, 0 and -9 at temperature 1: of the two likeliest, ids 1 and 0, p is 3/4 and 1/4.

    At temperature 1/2 it is 9/10 and 1/10. Drafts of scores ln 3 and 0 have shares of 3/4 and 1/4 of the next input.
    """
    assert (Superposed().temperature, Superposed().alpha) == (0.06, 0.54), "published"
    assert Superposed().by_size == (0.01, 0.04, 0.15, 0.18, 0.12)
    for temperature, p in ((1.0, 0.75), (0.5, 0.9)):
        method = Superposed(k=2, tokens=2, temperature=temperature)
        tokens, logprobs = method.candidates(torch.tensor([0.0, log(3), 0.0, -9.0]))
        assert tokens.tolist() == [1, 0], "equal logits by id"
        assert logprobs.exp().tolist() == pytest.approx([p, 1 - p])
    assert Superposed().mixture(np.array([log(3), 0.0])).tolist() == pytest.approx([0.75, 0.25])
