"""A causal model becomes a block-diffusion one: training computes what decoding computes, and the result decodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from adapt_text import options
from text_training.adaptation import Adaptation
from text_training.block_diffusion import complementary_loss, logits_of, streams

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.plan import Plan

pytestmark = pytest.mark.usefixtures("without_autocast")
BLOCK, MASK = 8, 4
ROWS = [
    {"prompt": "Ann has 8 cups.", "text": "8 + 5 = 13; answer 13"},
    {"prompt": [{"role": "user", "content": "Tom"}], "text": "4"},
]


def adaptation(folder: Path, steps: int, *more: str, source: str = "tiny-llama-draft") -> Adaptation:
    where = ["--out", str(folder / "out"), "--state", str(folder / "state"), "--device", "cpu"]
    size = ["--steps", str(steps), "--block", str(BLOCK), "--batch", "2"]
    rows = () if "--rows" in more else ("--mix", "arithmetic=0.5,lists=0.5")
    return Adaptation(options([source, *where, *size, *rows, *more]))


def test_what_the_two_copies_see() -> None:
    visible, positions = streams(4, 2)
    assert positions.tolist() == [0, 1, 2, 3] * 2
    assert visible.int().tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]


def test_training_sees_what_decoding_sees(tmp_path: Path) -> None:
    """The logits of each block are those of pardec's block-causal forward after clean blocks."""
    run = adaptation(tmp_path, 0)
    run.train()
    engine = pardec.load(tmp_path / "out", device="cpu", dtype="float32").language_model
    assert (engine.family, engine.decoding_config.shift, engine.decoding_config.block) == ("fast_dllm_v2", 1, BLOCK)
    clean = torch.randint(5, 300, (1, 4 * BLOCK), generator=torch.manual_seed(0))
    noisy = clean.masked_fill(torch.rand(clean.shape) < 0.5, MASK)
    with torch.no_grad():
        for value in run.model.parameters():  # as they are exported
            value.copy_(value.bfloat16())
        found = logits_of(run.model, noisy, clean, BLOCK)[0]
    for block in range(4):
        start = block * BLOCK
        canvas = torch.cat([clean[:, :start], noisy[:, start : start + BLOCK]], 1)
        expected = engine.forward(Plan.full(canvas, engine.visible())).logits()[0]
        first = max(start - 1, 0)
        torch.testing.assert_close(found[first : start + BLOCK - 1], expected[first:-1], atol=2e-4, rtol=1e-4)


def test_every_answer_token_is_predicted_once(tmp_path: Path) -> None:
    run = adaptation(tmp_path, 1)
    ids, prompt, end = run.batch(0)
    assert ((end + 1) % BLOCK == 0).all()
    assert (ids[torch.arange(2), end] == run.end_id).all()
    seen = []

    def model(input_ids: torch.Tensor, **_: object) -> object:
        seen.append(input_ids[:, : ids.shape[1]])
        return type("Outputs", (), {"logits": torch.zeros(*input_ids.shape, 400)})

    model.parameters = lambda: iter([torch.zeros(1)])  # type: ignore[attr-defined]
    loss = complementary_loss(model, ids, prompt, end, BLOCK, MASK, torch.manual_seed(0))  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(torch.tensor(400.0).log().item())
    masked = seen[0] == MASK
    at = torch.arange(ids.shape[1])
    answer = (at >= prompt[:, None]) & (at <= end[:, None])
    assert (masked[:2] ^ masked[2:]).equal(answer)


def test_what_is_learned_by_heart_is_decoded(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:1]))
    adaptation(tmp_path, 60, "--rows", str(rows), "--lr", "3e-3").train()
    model = pardec.load(tmp_path / "out", device="cpu")
    for sampler in ("sequential", "threshold:tau=0.9@block"):
        result = model.generate([ROWS[0]["prompt"]], sampler=sampler, max_new_tokens=32)
        assert result.text == [ROWS[0]["text"]]


def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    whole, broken = adaptation(tmp_path / "a", 4), adaptation(tmp_path / "b", 4)
    whole.train()
    while broken.step < 2:
        broken.advance()
    broken.save()
    again = adaptation(tmp_path / "b", 4)
    assert again.step == 2
    again.train()
    for name, value in whole.learned.items():
        assert torch.equal(value, again.learned[name]), name


@pytest.mark.usefixtures("with_autocast")
def test_an_adapter_is_merged_and_kept_beside(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = adaptation(tmp_path, 2, "--lora", "4")
    assert sum(value.numel() for value in run.learned.values()) < 60_000
    run.train()
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").stat().st_size < 300_000
    ids = torch.randint(5, 300, (1, BLOCK), generator=torch.manual_seed(0))
    model = pardec.load(tmp_path / "out", device="cpu")
    assert model.language_model.forward(Plan.full(ids, model.language_model.visible())).logits().isfinite().all()


def test_what_cannot_be_adapted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no token '<no>'"):
        adaptation(tmp_path, 1, "--mask-token", "<no>")
    with pytest.raises(
        SpecError, match="tiny-dream is of the type Dream, and models of llama and qwen2 can be adapted"
    ):
        adaptation(tmp_path, 1, source="tiny-dream")
    with pytest.raises(SystemExit):
        adaptation(tmp_path, 1, source="tiny-nothing")
    with pytest.raises(SystemExit):
        adaptation(tmp_path, 1, "--mix", "lists")


def test_a_run_is_resumed_with_its_own_blocks(tmp_path: Path) -> None:
    adaptation(tmp_path, 0).save()
    for option, value in (("block", 16), ("lora", 4)):
        with pytest.raises(ModelError, match=f"is of a run with {option} .*asks for {value}"):
            adaptation(tmp_path, 1, f"--{option}", str(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row"),
        (json.dumps(ROWS[0]) + '\n{"prompt', "line 2 is no row"),
        (json.dumps({"prompt": "a", "answer": "b"}), "line 1 is no row"),
        (json.dumps({"prompt": "1 " * 600, "text": "b"}), "leaves no room in a row of 512"),
    ],
)
def test_rows_that_cannot_be_learned_are_said(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        adaptation(tmp_path, 1, "--rows", str(file))


def test_an_answer_may_hold_line_separators_of_unicode(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "a", "text": "4\u20285"}, ensure_ascii=False), encoding="utf-8")
    assert len(adaptation(tmp_path, 1, "--rows", str(file)).rows) == 1
