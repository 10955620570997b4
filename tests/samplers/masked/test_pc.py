"""`pc` by hand, compared with the naive rule; its tables of counts, and its effect on frequent tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.masked.compatibility import fit
from pardec.samplers.masked.propose.pc import TABLES, table_names, token_frequencies
from tests.reference import naive_selects as naive
from tests.samplers import toys
from tests.samplers.eight_tokens import LAWS, MASK, SURE, TOKENS, proposal
from tests.samplers.heldout_answers import answered
from tests.samplers.parity import FAMILIES, agree, agree_recorded, recorded
from tests.samplers.toys import fill, prompts, request, run, same, table, toy


def counts(folder: Path, content: object) -> str:
    file = folder / "counts.json"
    file.write_text(json.dumps(content))
    return str(file)


def uneven(folder: Path, model: LanguageModel, seed: int = 0) -> tuple[str, np.ndarray]:
    """Counts of two in three tokens, of very different sizes, and their shares."""
    drawn = np.random.RandomState(seed)
    each = {t: int(n) for t, n in enumerate(drawn.geometric(0.01, model.vocab_size)) if t % 3}
    total = sum(each.values()) + 50
    shares = np.array([each.get(token, 1) / total for token in range(model.vocab_size)])
    return counts(folder, {"num_token": total, "p_baseline_dict": each}), shares


def eight_tokens_by_hand(decay: float, cap: float, tmp_path: Path) -> None:
    """Of 100 tokens 80 are 0, 15 are 2 and 4 are 3; 1 does not occur."""
    f = {0: 0.8, 2: 0.15, 3: 0.04, 1: 0.01}
    spec = {"num_token": 100, "p_baseline_dict": {"0": 80, "2": 15, "3": 4}}
    score = [
        math.exp(-decay * at) * min(cap, -p * math.log(f[token]))
        for at, (p, token) in enumerate(zip(SURE, TOKENS, strict=True))
    ]
    order = sorted(range(8), key=lambda at: -score[at])
    got = run(
        table(LAWS),
        f'pc:decay={decay},cap={cap},corpus="{counts(tmp_path, spec)}"',
        request([[MASK] * 8], [0], block_length=8),
    )
    assert got.trace.commit_step[0].argsort().tolist() == order
    assert got.trace.commit_score[0].tolist() == pytest.approx(score, rel=1e-5)
    assert got.tokens[0].tolist() == list(TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_naive_rule(family: str, tmp_path: Path) -> None:
    file, shares = uneven(tmp_path, toy(family))
    for decay, cap in ((0.25, 10.0), (0.0, 2.0)):
        agree(
            f'pc:decay={decay},cap={cap},corpus="{file}"', lambda d=decay, c=cap: naive.PC(shares, d, c), family=family
        )


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str, tmp_path: Path) -> None:
    file, shares = uneven(tmp_path, recorded(name))
    agree_recorded(name, f'pc:corpus="{file}"', lambda: naive.PC(shares, 0.25, 10.0))


def test_a_schedule_commits_as_many_as_it_owes(tmp_path: Path) -> None:
    model, (prompt,) = toy(sharp=1.2), prompts((5,))
    file, shares = uneven(tmp_path, model)
    got = fill(model, f'pc:corpus="{file}"+fixed:steps=6', [prompt], 16, block_length=8)
    rule = naive.PC(shares, 0.25, 10.0, lambda count: [3, 3, 2])
    tokens, when, nfe = naive.decode(model, [*prompt, *[toys.MASK] * 16], 5, rule, block_length=8)
    assert got.tokens[0].tolist() == tokens
    assert got.trace.commit_step[0].tolist() == when
    assert got.nfe == (nfe,) == (6,)


def test_where_no_corpus_is_counted_only_the_position_stands_beside_the_probability() -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    for spec, same_as in (("pc:decay=0", "sequential"), ("pc:decay=20", "leftmost+fixed")):
        one, other = (fill(model, each, given, new) for each in (spec, same_as))
        assert all(same(one, row, other, row) for row in range(3)), spec
    assert str(registry.resolve("pc").spec).startswith("pc:decay=0.25,cap=10.0,corpus=none+fixed:")


def test_a_table_a_file_of_counts_and_a_text_are_read(tmp_path: Path) -> None:
    model = load("tiny-dream", device="cpu")
    assert table_names() == ["tasks"]
    own = token_frequencies("tasks", model)
    assert own.shape == (model.vocab_size,)
    assert float(own.min()) == pytest.approx(1 / 341253)
    published = {key: json.loads((TABLES / "tasks.json").read_text())[key] for key in ("num_token", "p_baseline_dict")}
    assert torch.equal(own, token_frequencies(counts(tmp_path, published), model))
    (tmp_path / "words.txt").write_text("3 + 4 = 7 3 3")
    shares = token_frequencies(str(tmp_path / "words.txt"), model)
    ids = model.tokenizer("3 + 4 = 7 3 3", add_special_tokens=False)["input_ids"]
    assert shares[ids].tolist() == pytest.approx([ids.count(token) / len(ids) for token in ids])
    assert float(shares[model.decoding_config.eos_ids[0]]) == pytest.approx(1 / len(ids))
    for spec, corpus in (("pc", "tasks"), (f'pc:corpus="{tmp_path}/words.txt"', f"{tmp_path}/words.txt")):
        fitted = fit(registry.resolve(spec, "masked"), model)
        assert fitted.propose.corpus == corpus  # results say which
        assert fitted.spec == fit(fitted, model).spec


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1], "is no table of counts"),
        ({"num_token": 3}, "is no table of counts"),
        ({"num_token": 3, "p_baseline_dict": {"a": 1}}, "is no table of counts"),
        ({"num_token": 3, "p_baseline_dict": {"1": 0}}, "counts that are not above 0"),
        ({"num_token": 3, "p_baseline_dict": {"1": 2, "2": 2}}, "more than its num_token"),
        ({"num_token": 3, "p_baseline_dict": {}}, "has no tokens"),
        ({"num_token": 3, "p_baseline_dict": {"20": 1}}, "counts ids up to 20, and toy has 20"),
        ({"num_token": 3, "p_baseline_dict": {"-1": 1}}, "counts ids up to -1, and toy has 20"),
    ],
)
def test_files_that_are_no_counts_are_refused(content: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        fill(toy(), f'pc:corpus="{counts(tmp_path, content)}"', prompts((3,)), 4)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for spec, says in (("pc:decay=-1", "decay must be at least 0"), ("pc:cap=-1", "cap must be at least 0")):
        with pytest.raises(SpecError, match=says):
            registry.resolve(spec)
    (tmp_path / "words.txt").write_text("one two")
    for corpus, says in (("tasksy", "no file tasksy.*'tasks'"), (f"{tmp_path}/words.txt", "toy has no tokenizer")):
        with pytest.raises(SpecError, match=says):
            fill(toy(), f'pc:corpus="{corpus}"', prompts((3,)), 4)
    (tmp_path / "words.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read as text"):
        token_frequencies(f"{tmp_path}/words.txt", load("tiny-dream", device="cpu"))


@pytest.mark.seeds("arXiv:2508.13021")
def test_frequent_tokens_which_confidence_commits_early_come_late(tmp_path: Path) -> None:
    """The correlation of a token's frequency with the forward that commits it changes its sign."""
    for decay, cap in ((0.25, 10.0), (0.0, 10.0), (1.0, 1.0)):
        eight_tokens_by_hand(decay, cap, tmp_path)
    drawn = proposal("pc", temperature=2.0)
    own = LAWS.gather(1, drawn.tokens[0, :, None])[:7, 0]
    assert (own < LAWS[:7].amax(1)).any()  # a drawn token counts with its own probability
    decayed = own * math.log(LAWS.shape[1]) * (-0.25 * torch.arange(7)).exp()
    assert drawn.score[0, :7].tolist() == pytest.approx(decayed.tolist(), rel=1e-5)
    frequency = token_frequencies("tasks", load("tiny-dream", device="cpu")).log().numpy()
    for task in ("arithmetic", "records"):
        mean = {}
        for spec in ("fixed", "pc:decay=0"):
            right, result = answered("tiny-dream", task, spec, 3)
            assert right >= 2
            each = zip(result.trace.commit_step, result.sequences.numpy(), strict=True)
            pairs = [(when[when >= 0], frequency[tokens[when >= 0]]) for when, tokens in each]
            mean[spec] = np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])
        assert mean["fixed"] < -0.2 < 0.4 < mean["pc:decay=0"], task
