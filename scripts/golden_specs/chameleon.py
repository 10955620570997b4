"""SJD's ports over Chameleon: grammars by position, guidance, and rounds over a small Lumina-mGPT.

The port draws the ends of rows like other tokens, and commits them one per forward where a draft is refused; pardec
needs no forward for them. So rounds are compared one by one: the distributions after the recorded window, and the
accepted tokens.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import pardec
from golden_specs import Case, relative
from pardec.models.images.chameleon import (
    BOS,
    GRID,
    IMAGE_END,
    IMAGE_START,
    MESSAGE_END,
    ROW_END,
    ChameleonWords,
    LuminaImaging,
)
from pardec.models.images.contracts import Condition, ImageLayout
from pardec.models.load import load
from pardec.requests.images import intersect
from pardec.requests.prompts import Row
from pardec.samplers.ops.distribution import filter_logits

_LOOSE = 1e-4


def _codes(first: int, last: int) -> dict[str, int]:
    """Names of the codes with these ids, in order."""
    letters = "ABCDEFGHIJ"
    names = ("".join(letters[int(digit)] for digit in str(code)) for code in range(last + 1 - first))
    return {f"IMGIMG{name}Z": first + code for code, name in enumerate(names)}


def _lumina(p: dict[str, Any]) -> dict[str, int]:
    """A vocabulary with the recorded ids."""
    marks = {BOS: 0, IMAGE_START: p["boi"], IMAGE_END: p["eoi"], MESSAGE_END: 8710, ROW_END: p["newline"]}
    grids = {f"<reserved{GRID + units:05d}>": 8804 + units for units in range(1, 9)}
    return {**_codes(*p["image_ids"]), **marks, **grids}


def _names(layout: ImageLayout, names: dict[tuple[int, ...], str], vocabulary: int) -> list[str]:
    """The names that each position of an image may have, by the constraints of a request."""
    row = Row(torch.tensor([0]), torch.full((layout.tokens,), -1))
    constraints = intersect(layout, None, [row], vocabulary)
    assert constraints is not None, "a grammar"
    sets = constraints.sets[constraints.at[0][len(row.prompt) :]]
    return [names.get(tuple(each.nonzero()[:, 0].tolist()), "other") for each in sets]


def lumina_window(case: Case, *_: object) -> str | None:
    """Outside of an image nothing is constrained; the two grid tokens are fixed, which the port leaves open.

    After the end of an image the port continues with rows: there its token-by-token rule, `grammar`, is right.
    """
    p = case["params"]
    words = ChameleonWords(None, _lumina(p), case["id"], rows=True)
    imaging = LuminaImaging(words, lambda: torch.zeros(0), decoder=None, tokens=4)
    layout = imaging.resized(32 * p["h_grids"], 32 * p["w_grids"]).layout
    if layout.grid != (p["height"], p["width"]):
        return f"a grid of {layout.grid}, expected {p['height']}, {p['width']}"
    first, last = p["image_ids"]
    names = {(p["newline"],): "newline", (p["eoi"],): "eoi", tuple(range(first, last + 1)): "image"}
    own, start = _names(layout, names, 8900), p["generated"]
    inside = range(start, start + p["window"]) if start is not None and start >= 0 else range(-p["window"], 0)
    found = [own[at] if 0 <= at < len(own) else "free" for at in inside]
    expected = case["allowed"] if case["agrees"] or case["grammar"] is None else case["grammar"]
    return None if found == expected else f"{found}, expected {expected}"


def anole_grammar(case: Case, *_: object) -> str | None:
    """The grammar from the first code to the end of the image; earlier tokens are given, later ones do not exist."""
    p = case["params"]
    own = _names(_square(p), _anole_names(p), p["vocab_size"])
    begin = case["history"].index(p["boi"]) - p["prompt_length"] + 1
    expected = case["allowed"][begin : begin + len(own)]
    return None if own == expected else f"{own}, expected {expected}"


def anole_window(case: Case, *_: object) -> str | None:
    """The rule of a window's first position, which the port wrongly applies to the other positions as well."""
    p = case["params"]
    if p["boi"] not in case["history"]:
        return None if case["allowed"][0] == "boi" else "the image is to be begun"  # it is, by the prompt
    at = len(case["history"]) - case["history"].index(p["boi"]) - 1
    found = _names(_square(p), _anole_names(p), p["vocab_size"])[at]
    return None if found == case["allowed"][0] else f"{found}, expected {case['allowed'][0]}"


def _square(p: dict[str, Any]) -> ImageLayout:
    side, (first, last) = int(p["image_seq_length"] ** 0.5), p["image_ids"]
    return ImageLayout(side, side, closing=(p["eoi"],), ids=torch.arange(first, last + 1))


def _anole_names(p: dict[str, Any]) -> dict[tuple[int, ...], str]:
    first, last = p["image_ids"]
    return {(p["eoi"],): "eoi", tuple(range(first, last + 1)): "image"}


def cfg_window(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Guidance, top-k and draws by inverse CDF."""
    p, (cond, uncond) = case["params"], tensors[case["logits_tensor"]][:, -case["params"]["window"] :]
    scores = uncond + p["guidance_scale"] * (cond - uncond) if case["guided"] else cond
    top_k = p["image_top_k"] if case["guided"] else p["text_top_k"]
    probs = filter_logits(scores[None], temperature=1.0, top_k=min(top_k, scores.shape[-1]))[0].softmax(-1)
    if (error := relative(probs, tensors[case["probs_tensor"]].view_as(probs))) > _LOOSE:
        return f"probabilities differ by {error:.1e}"
    mass = probs.double().cumsum(-1)
    u = torch.tensor(case["uniforms"], dtype=torch.float64)[:, None] * mass[:, -1:]
    tokens = (mass <= u).sum(-1).tolist()
    return None if tokens == case["tokens"] else f"tokens {tokens}, expected {case['tokens']}"


def double_prompt(case: Case, *_: object) -> str | None:
    """Rows are aligned on the left here, and each has its own prompt, without padding."""
    pad = case["params"]["pad_id"]
    own = []
    for row in case["rows"]:
        first = next(at for at, token in enumerate(row) if token != pad)
        own.append(row[first:])
    expected = [case["prompt_ids"], case["negative_ids"]]
    return None if own == expected else f"{own}, expected {expected}"


def window_init(case: Case, *_: object) -> str | None:
    """The initial tokens of a window's new positions, as for `init=random` and `init=left`."""
    p, tokens = case["params"], list(case["drawn_random"])
    if p["scheme"] != "random":
        cell = len(case["input_ids"]) + len(case["kept_drafts"]) - p["prefill_num"] - 3
        before = [*case["input_ids"], *case["kept_drafts"]]
        for at in range(len(tokens)):
            if (cell + at) % (p["width"] + 1):
                tokens[at] = tokens[at - 1] if at else before[-1]
    return None if tokens == case["tokens"] else f"{tokens}, expected {case['tokens']}"


@lru_cache(maxsize=2)
def _checkpoint(folder: Path) -> pardec.Model:
    """The recorded checkpoint, with the names of all its ids, which it leaves out."""
    with TemporaryDirectory() as name:
        copy = Path(name) / "lumina"
        copy.mkdir()
        (copy / "model.safetensors").symlink_to((folder / "checkpoint" / "model.safetensors").resolve())
        config = json.loads((folder / "checkpoint" / "config.json").read_text())
        ids = {"boi": 8197, "eoi": 8196, "newline": 8803, "image_ids": [4, 8195]}
        config |= {"vocabulary_map": _lumina(ids), "image_size": 32}
        (copy / "config.json").write_text(json.dumps(config))
        return pardec.Model(load(copy, device="cpu", dtype="float32"))


class _Given(LuminaImaging):
    """The image interface with a recorded prompt; the unconditional prompt is its last token."""

    def prompt(self, caption: str) -> list[int]:
        return [int(token) for token in caption.split()]

    def unconditional(self) -> list[int]:
        return self.given[-1:]

    given: list[int]


def _rounds(case: Case, model: pardec.Model, imaging: _Given) -> str | None:
    """The distributions after each recorded window, and which of its tokens are accepted."""
    p, network = case["params"], model.language_model
    layout, sets = imaging.layout, None
    row = Row(torch.tensor([0]), torch.full((layout.tokens,), -1))
    constraints = intersect(layout, None, [row], network.vocab_size)
    assert constraints is not None, "a grammar"
    sets = constraints.sets[constraints.at[0][1:]]
    known = list(case["prompt_ids"])
    start = len(known)
    for number, now in enumerate(case["trace"]):
        text = known[: len(known) - 1] + now["window"] if number else known
        cond = model.logits(torch.tensor([text]))[0]
        uncond = model.logits(torch.tensor([text[start - 1 :]]))[0]
        width = len(now["sampled"])
        guided = uncond[-width:] + p["guidance_scale"] * (cond[-width:] - uncond[-width:])
        places = [len(text) - width + 1 + at - start for at in range(width)]
        laws = []
        for at, place in enumerate(places):
            if place >= layout.tokens:  # after the end of the image, where a row has ended here
                break
            scores = guided[at].masked_fill(~sets[place], -torch.inf)
            laws.append(filter_logits(scores[None, None], temperature=1.0, top_k=p["image_top_k"])[0, 0].softmax(-1))
        for at, law in enumerate(laws):
            ids, probs = now["target_law"][at]
            if abs(float(law[ids].sum()) - 1) > _LOOSE or (law[ids] - torch.tensor(probs)).abs().max() > _LOOSE:
                return f"round {number}: the distribution at position {places[at]} differs"
        if not now["prefill"] and p["scheme"] == "speculative_jacobi":
            count = 1
            for at in range(1, min(len(laws) + 1, len(now["window"]))):
                token, (ids, probs) = now["window"][at], now["draft_law"][at]
                q = dict(zip(ids, probs, strict=True))[token]
                if not now["uniform_for_draft"][at] < float(laws[at - 1][token]) / q:
                    break
                count += 1
            if len(laws) == width and count != now["matched"]:
                return f"round {number}: {count} accepted, expected {now['matched']}"
        known += now["accepted_tokens"]
    return None


def lumina_generate(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Every recorded round, and with k = 1 the image that is decoded token by token."""
    p, model = case["params"], _checkpoint(folder)
    own = model.language_model.imaging
    assert isinstance(own, LuminaImaging), "by the vocabulary"
    imaging = _Given(own.words, own.embedding, decoder=None, tokens=4)
    imaging.given = case["prompt_ids"]
    imaging = imaging.resized(32 * p["h_grids"], 32 * p["w_grids"])  # type: ignore[assignment]
    prefix = imaging.prefix([Condition(text=" ".join(map(str, case["prompt_ids"])))])
    if (len(prefix.cond[0]), len(prefix.uncond[0]) if prefix.uncond else 0) != (len(case["prompt_ids"]), 1):
        return "the unconditional prefix is the prompt's last token"
    if (name := case["first_logits_tensor"]) is not None:
        prompts = (case["prompt_ids"], case["prompt_ids"][-1:])
        halves = torch.stack([model.logits(torch.tensor([ids]))[0, -1, ::25] for ids in prompts])
        if (error := relative(halves, tensors[name])) > _LOOSE:
            return f"the first logits differ by {error:.1e}"
    if (difference := _rounds(case, model, imaging)) is not None or p["image_top_k"] > 1:
        return difference
    model.language_model.imaging = imaging
    result = model.generate(" ".join(map(str, case["prompt_ids"])), cfg=p["guidance_scale"], sampler="sjd:window=4")
    model.language_model.imaging = own
    expected = case["output_ids"][: imaging.layout.tokens]
    return None if result.tokens == [expected] else f"greedy image {result.tokens}, expected {expected}"


REPLAYS = {
    "lumina_window": lumina_window,
    "anole_grammar": anole_grammar,
    "anole_window": anole_window,
    "sjd_cfg_window": cfg_window,
    "sjd_double_prompt": double_prompt,
    "sjd_window_init": window_init,
    "sjd_lumina_generate": lumina_generate,
}
