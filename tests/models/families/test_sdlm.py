"""SDLM compared with a plain version of its rule on transformers' Qwen2, in the authors' layout and without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pardec
from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.loading.recognition import describe
from tests.models.toys import SMALL, library_model
from tests.samplers.masked import test_contiguous, test_next_sequence

MASK = 60


def published(folder: Path, **changes: Any) -> Any:
    """A random Qwen2 model with the keys that the authors' training adds to its config."""
    sizes = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True}
    model = library_model(transformers.Qwen2Config(**sizes), seed=4)
    model.save_pretrained(folder)
    own = {"block_size": 4, "causal_attn": False, "text_mask_token_id": MASK, "text_mask_token": "<text_mask>"}
    written = json.loads((folder / "config.json").read_text()) | own | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in written.items() if value is not None}))
    return model


@torch.no_grad()
def window(reference: Any, text: list[int], size: int) -> torch.Tensor:
    """[size, V] probabilities of the next tokens: the text, and after it its last token again and size - 1 masks.

    The text is causal. The window sees the text without its last token, and itself.
    """
    tokens = [*text, text[-1], *[MASK] * (size - 1)]
    at, last = torch.arange(len(tokens)), len(text) - 1
    inside = at > last
    sees = torch.where(inside[:, None], (at < last) | inside, at <= at[:, None])
    additive = torch.zeros(1, 1, len(tokens), len(tokens)).masked_fill(~sees, torch.finfo(torch.float32).min)
    positions = torch.where(inside, at - 1, at)
    rows = reference(torch.tensor([tokens]), attention_mask=additive, position_ids=positions[None]).logits[
        0, last + 1 :
    ]
    rows[:, MASK] = -torch.inf
    return rows.softmax(-1)


def naive(reference: Any, prompt: list[int], count: int, block: int, tau: float) -> tuple[list[int], int]:
    """Decodes by the published rule: the longest run of confident tokens at the window's front, at least one."""
    text, forwards = list(prompt), 0
    while (left := len(prompt) + count - len(text)) > 0:
        forwards += 1
        best = window(reference, text, min(block, left)).max(-1)
        sure = (best.values >= tau).long().cumprod(0).sum()
        text += best.indices[: max(int(sure), 1)].tolist()
    return text, forwards


def naive_verified(reference: Any, prompt: list[int], count: int, block: int) -> tuple[list[int], int]:
    """Decodes by the published self-speculation: a forward has every prefix of the draft, each with a window of masks.

    A window's first token verifies the draft's next one; the other tokens of the last window that was reached are the
    next draft.
    """
    end = len(prompt) + count
    first, *draft = window(reference, prompt, min(block, count)).argmax(-1).tolist()
    text, forwards = [*prompt, first], 1
    while len(text) < end:
        forwards += 1
        draft = draft[: end - len(text) - 1]  # a text that is complete has no window
        rows = [[*text, *draft[:taken]] for taken in range(len(draft) + 1)]
        found = [window(reference, row, min(block, end - len(row))).argmax(-1).tolist() for row in rows]
        taken = 0
        while taken < len(draft) and found[taken][0] == draft[taken]:
            taken += 1
        text, draft = [*rows[taken], found[taken][0]], found[taken][1:]
    return text, forwards


def three_prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 59, (size,), generator=generator).tolist() for size in (9, 1, 13)]


@pytest.mark.parametrize(("block", "tau"), [(4, 0.05), (4, 0.9), (8, 0.04), (3, 0.0), (1, 0.5)])
def test_every_decode_is_the_rules(tmp_path: Path, block: int, tau: float) -> None:
    reference, model = published(tmp_path), pardec.load(tmp_path, device="cpu")
    arguments: dict[str, Any] = {"max_new_tokens": 19, "block_length": block, "stop_ids": []}
    prompts, runs = three_prompts(block), []
    together = model.generate(input_ids=prompts, sampler=f"contiguous:tau={tau}", **arguments)
    for row, prompt in enumerate(prompts):
        expected, forwards = naive(reference, prompt, 19, block, tau)
        spec = f"contiguous:tau={tau}@next_sequence"
        alone = model.generate(input_ids=[prompt], sampler=spec, **arguments)
        assert alone.sequences[0].tolist() == expected
        assert alone.nfe[0] == forwards
        assert together.sequences[row, : len(expected)].tolist() == expected
        runs.append(forwards)
    if 0 < tau < 0.1:
        assert all(19 / block < forwards < 19 for forwards in runs), runs  # some windows are confident in part


@pytest.mark.parametrize("block", [4, 8, 2])
def test_windows_that_verify_drafts_are_the_published_self_speculation(tmp_path: Path, block: int) -> None:
    """The tokens are the first ones of a window each; the forwards are those of the published loop."""
    reference, model = published(tmp_path), pardec.load(tmp_path, device="cpu")
    arguments: dict[str, Any] = {"max_new_tokens": 19, "block_length": block, "stop_ids": []}
    spec = f"freedave:drafts={block - 1}+leftmost+sequential@next_sequence"
    prompts, saved = three_prompts(block), 0
    together = model.generate(input_ids=prompts, sampler=spec, **arguments)
    for row, prompt in enumerate(prompts):
        expected, forwards = naive_verified(reference, prompt, 19, block)
        alone = model.generate(input_ids=[prompt], sampler=spec, **arguments)
        assert alone.sequences[0].tolist() == expected
        assert alone.nfe[0] == forwards
        assert together.sequences[row, : len(expected)].tolist() == expected
        plain = model.generate(input_ids=[prompt], sampler="leftmost+sequential@next_sequence", **arguments)
        assert plain.sequences[0].tolist() == expected
        saved += 19 - forwards
    assert saved > 0


def test_the_preset_of_self_speculation_is_for_windows_of_four(tmp_path: Path) -> None:
    reference, model = published(tmp_path), pardec.load(tmp_path, device="cpu")
    (prompt, *_) = three_prompts(5)
    result = model.generate(input_ids=[prompt], sampler="preset:sdlm-verified", max_new_tokens=12, stop_ids=[])
    assert (result.sequences[0].tolist(), int(result.nfe[0])) == naive_verified(reference, prompt, 12, 4)


@pytest.mark.seeds("arXiv:2509.24007")
def test_the_published_rule_is_the_default(tmp_path: Path) -> None:
    test_next_sequence.test_what_is_computed_by_hand()
    test_contiguous.test_given_tokens_do_not_end_a_run_and_a_block_does()
    test_contiguous.test_a_score_of_exactly_tau_goes_on()
    test_every_decode_is_the_rules(tmp_path, 4, 0.05)
    test_windows_that_verify_drafts_are_the_published_self_speculation(tmp_path, 4)
    reference, model = published(tmp_path), pardec.load(tmp_path, device="cpu")
    (prompt, *_) = three_prompts(5)
    result = model.generate(input_ids=[prompt], max_new_tokens=12, stop_ids=[])
    assert (result.sequences[0].tolist(), int(result.nfe[0])) == naive(reference, prompt, 12, 4, 0.9)


def test_a_causal_model_of_the_same_files_verifies_its_windows(tmp_path: Path) -> None:
    reference, model = published(tmp_path), pardec.load(tmp_path, device="cpu", attention="causal")
    prompts = three_prompts(6)
    arguments: dict[str, Any] = {"max_new_tokens": 10, "stop_ids": []}
    plain, drafted = (
        model.generate(input_ids=prompts, sampler=spec, **arguments) for spec in ("sequential", "linearspec:k=3")
    )
    assert (plain.sequences == drafted.sequences).all()
    for row, prompt in enumerate(prompts):  # a window of one token is the last token after the text before it
        assert naive(reference, prompt, 10, 1, 0)[0] == plain.sequences[row, : len(prompt) + 10].tolist()


@pytest.mark.parametrize(
    ("changes", "name", "block"),
    [({}, "model", 4), ({"block_size": 8}, "model", 8), ({"block_size": None}, "SDLM-3B-D8", 8)],
)
def test_what_the_files_say_is_followed(tmp_path: Path, changes: dict[str, Any], name: str, block: int) -> None:
    published(tmp_path / name, **changes)
    found = load(tmp_path / name, device="cpu").decoding_config
    assert (found.mask_id, found.shift, found.attention, found.block) == (MASK, 1, "causal-prefix", block)
    assert describe(tmp_path / name)["family"] == "sdlm (SDLM)"


def test_half_known_layouts_are_refused(tmp_path: Path) -> None:
    published(tmp_path, causal_attn=True)
    with pytest.raises(ModelError, match="causal_attn=true in config.json"):
        load(tmp_path, device="cpu")
    published(tmp_path, text_mask_token_id=61)
    with pytest.raises(ModelError, match="mask id 61 lies outside the vocabulary of 61"):
        load(tmp_path, device="cpu")
    published(tmp_path, text_mask_token_id="60")
    with pytest.raises(ModelError, match="text_mask_token_id is '60', and a whole number is needed"):
        load(tmp_path, device="cpu")
    published(tmp_path, causal_attn="false")
    with pytest.raises(ModelError, match="causal_attn is 'false', and true or false is needed"):
        load(tmp_path, device="cpu")
    published(tmp_path, text_mask_token_id=None)
    assert not load(tmp_path, device="cpu").decoding_config.masked  # without the key it is Qwen2
