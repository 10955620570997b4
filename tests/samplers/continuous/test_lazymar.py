"""`mar` with results reused from earlier steps, compared with a plain version position by position; its counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.continuous.contracts import ContinuousModel, Reuse
from pardec.models.continuous.mar import ReusingReader
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load_continuous
from pardec.samplers.continuous.methods.mar import MAR
from pardec.samplers.ops.unmasking import unmasking
from pardec.samplers.registry import preset, resolve
from pardec.samplers.rng import Keyed
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, latents_of, mar, toy

EVERY = ("uncond_every=3", "decoder_every=3,layer=1,margin=2", "uncond_every=3,decoder_every=3,layer=1,margin=2")


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return mar(3, steps=20, depth=4)


@pytest.fixture(scope="module")
def trained() -> ContinuousModel:
    """A model whose vectors stay bounded along a path, so that reuse has visible effects; in float64."""
    folder = Path(pardec.__file__).parents[1] / "models" / "embedded" / "tiny-mar"
    model = load_continuous(folder, device="cpu", dtype="float32")
    for part in (model.backbone.network, model.head.network):  # type: ignore[attr-defined]
        part.double()
    return replace(model, head=model.head.respaced(8))


class Half:
    """One half of guidance in the plain version: K/V by layer and position, and the decoder's inputs."""

    def __init__(self, network: Any, label: int) -> None:
        self.network, self.label = network, label
        self.encoder: list[dict[int, Any]] = [{} for _ in network.encoder_blocks]
        self.decoder: list[dict[int, Any]] = [{} for _ in network.decoder_blocks]
        self.inputs: dict[int, Tensor] = {}

    @staticmethod
    def attend(block: Any, x: dict[int, Tensor], kept: dict[int, Any]) -> dict[int, Tensor]:
        """Attends from each position to all kept ones, including itself."""
        vectors = torch.stack([*x.values()])
        q, k, v = block.attn.qkv(block.norm1(vectors)).unflatten(-1, (3, block.attn.heads, -1)).unbind(1)
        kept.update(zip(x, zip(k, v, strict=True), strict=True))
        keys, values = (torch.stack([pair[part] for _, pair in sorted(kept.items())]) for part in (0, 1))
        weights = (torch.einsum("nhd,lhd->nhl", q, keys) / math.sqrt(q.shape[-1])).softmax(-1)
        return dict(
            zip(x, vectors + block.attn.proj(torch.einsum("nhl,lhd->nhd", weights, values).flatten(1)), strict=True)
        )

    @staticmethod
    def feed(block: Any, x: dict[int, Tensor]) -> dict[int, Tensor]:
        return dict(zip(x, block.feed(torch.stack([*x.values()])), strict=True))

    def encode(self, latents: Tensor, known: list[int], computed: Iterable[int]) -> None:
        """Updates the decoder's inputs at the class's positions and at these tokens."""
        net, buffer = self.network, self.network.buffer
        embedding = net.fake_latent[0] if self.label < 0 else net.class_emb.weight[self.label]
        position = net.encoder_pos_embed_learned[0]
        x = {at: net.z_proj_ln(embedding + position[at]) for at in range(buffer)}
        x |= {buffer + t: net.z_proj_ln(net.z_proj(latents[t]) + position[buffer + t]) for t in computed}
        for block, kept in zip(net.encoder_blocks, self.encoder, strict=True):
            x = self.feed(block, self.attend(block, x, kept))
        self.inputs |= {at: net.decoder_embed(net.encoder_norm(vector)) for at, vector in x.items()}
        for t in range(net.tokens):
            if t not in known:
                self.inputs[buffer + t] = net.mask_token[0, 0]

    def full(self, latents: Tensor, known: list[int]) -> dict[int, Tensor]:
        for kept in (*self.encoder, *self.decoder):
            kept.clear()
        self.encode(latents, known, known)
        x = {at: vector + self.network.decoder_pos_embed_learned[0, at] for at, vector in self.inputs.items()}
        for block, kept in zip(self.network.decoder_blocks, self.decoder, strict=True):
            x = self.feed(block, self.attend(block, x, kept))
        return x

    def partial(
        self, latents: Tensor, known: list[int], new: list[int], must: set[int], layer: int, count: int, chosen: Any
    ) -> tuple[dict[int, Tensor], set[int]]:
        """Of the positions that pass all layers: `chosen`, or those that changed the most; and these positions."""
        self.encode(latents, known, new)
        x = {at: vector + self.network.decoder_pos_embed_learned[0, at] for at, vector in self.inputs.items()}
        for number, (block, kept) in enumerate(zip(self.network.decoder_blocks, self.decoder, strict=True)):
            before = {at: pair[1] for at, pair in kept.items()}
            x = self.attend(block, x, kept)
            if number == layer:
                cosine = {at: torch.cosine_similarity(kept[at][1], before[at], dim=-1).mean() for at in x}
                like = {at: round(float(each) * 2**16) for at, each in cosine.items()}
                ranked = sorted(x, key=lambda at: (at not in must, like[at], at))
                chosen = set(ranked[:count]) if chosen is None else chosen
                x = {at: x[at] for at in chosen}
            x = self.feed(block, x)
        return x, chosen


def naive(
    model: ContinuousModel,
    when: np.ndarray,
    recorded: np.ndarray,
    method: MAR,
    cfg: float | None,
    label: int = 1,
    seed: int = 6,
) -> tuple[np.ndarray, list[int], list[int]]:
    """One image in the recorded order; each step starts from the recorded vectors, since paths amplify rounding.

    Also, of each step, the rows of the backbone and the tokens fed.
    """
    network, head = model.backbone.network, model.head.network  # type: ignore[attr-defined]
    size, tokens, buffer, steps = model.head.size, network.tokens, network.buffer, int(when.max()) + 1
    positions = tokens + buffer
    latents, own, change = torch.from_numpy(recorded).double(), torch.zeros(tokens, size), dict[int, Tensor]()
    guided, free = Half(network, label), Half(network, -1)
    rows, fed = [], []
    for step in range(steps):
        known = np.flatnonzero(when < step).tolist()
        new, drawn = np.flatnonzero(when == step - 1).tolist(), np.flatnonzero(when == step).tolist()
        after = step - method.warmup
        positions_due = after < 0 or after % method.decoder_every == 0
        uncond_due = after < 0 or after % method.uncond_every == 0
        chosen: set[int] | None = None
        if positions_due:
            x = guided.full(latents, known)
            y = free.full(latents, known) if uncond_due and cfg else {}
        else:
            must = {buffer + t for t in (*new, *drawn)}
            share = method.reuse_at(step, steps).share
            assert share is not None
            count = min(max(len(must) + method.margin, int(positions * share)), positions)
            x, chosen = guided.partial(latents, known, new, must, method.layer, count, None)
            if uncond_due and cfg:
                y, _ = free.partial(latents, known, new, must, method.layer, count, chosen)
        if cfg and uncond_due and positions_due:
            change = {at: y[at] - x[at] for at in x}
        if cfg and not uncond_due:
            y = {at: x[at] + change[at] for at in x}
        rows.append(2 if cfg and uncond_due else 1)
        fed.append(tokens if chosen is None else sum(at >= buffer for at in chosen))
        scale = None if cfg is None else float(unmasking(tokens, steps).scale(cfg, "linear")[step])

        def z(state: dict[int, Tensor], t: int) -> Tensor:
            out: Tensor = network.decoder_norm(state[buffer + t]) + network.diffusion_pos_embed_learned[0, t]
            return out

        for t in drawn:
            states = [head.cond_embed(z(half, t)) for half in ((x,) if cfg is None else (x, y))]
            own[t] = walk(model, states, scale, method.head_every, noise_of(seed, t, model))
    return own.numpy(), rows, fed


def noise_of(seed: int, t: int, model: ContinuousModel) -> Tensor:
    width = (model.head.steps + 1) * model.head.size
    u = Keyed((seed,)).uniform(np.array([0]), np.array([0]), torch.tensor([[t]]), "token", width)
    return torch.special.ndtri(u[0, 0]).float().view(-1, model.head.size)


def walk(model: ContinuousModel, states: list[Tensor], scale: float | None, every: int, e: Tensor) -> Tensor:
    """The path of one token, transition by transition and half by half."""
    head, net, steps = model.head, model.head.network, model.head.steps  # type: ignore[attr-defined]
    times, size, x = net.time_embed(head.schedule.timesteps), model.head.size, e[0]  # type: ignore[attr-defined]
    added = change = torch.zeros(())
    for number, index in enumerate(reversed(range(steps)), 1):
        whole = index > 0.9 * steps or index == steps - 1 or index % every == 0
        outputs = []
        for half, state in enumerate(states if whole else states[:1]):
            y = torch.nn.functional.silu(times[index] + state)
            h = start = net.input_proj(x.double())
            if whole:
                for block in net.res_blocks:
                    h = block(h, *block.modulations(y))
                added = h - start if half == 0 else added
            else:
                h = start + added
            outputs.append(net.final_layer(h, *net.final_layer.modulations(y)).float())
        noise, share = outputs[0][:size], outputs[0][size:]
        if scale is not None:
            if whole:
                change = noise - outputs[1][:size]
            noise = noise - change + scale * change
        of_point, of_noise, middle, reach = head._columns[index]  # type: ignore[attr-defined]
        x = of_point * x + of_noise * noise
        if index:
            x = x + (middle + reach * share).exp() * e[number]
    return x


@pytest.mark.parametrize(
    ("options", "cfg"),
    [(options, 2.5) for options in (*EVERY[:2], "head_every=7")]
    + [(EVERY[2] + ",head_every=3", None)]
    + [
        pytest.param(options, cfg, marks=pytest.mark.slow)  # in parts what others do too
        for options, cfg in ((EVERY[2], 2.5), ("uncond_every=4,decoder_every=2", 2.5), (EVERY[1], None))
    ],
)
def test_each_option_is_its_plain_version(trained: ContinuousModel, options: str, cfg: float | None) -> None:
    spec = f"mar:steps=5,warmup=1,{options}"
    method = resolve(spec, "continuous").method
    assert isinstance(method, MAR)
    got = generate(trained, spec, labels=(3, 1), seeds=(5, 6), cfg=cfg)
    with torch.inference_mode():
        expected, rows, fed = naive(trained, got.trace.commit_step[1], latents_of(got)[1], method, cfg)
    np.testing.assert_allclose(latents_of(got)[1], expected, atol=2e-4)
    assert got.forward_rows[1] == sum(rows)
    assert [len(each) for each in got.trace.fed[1]] == fed
    assert got.tokens_fed[1] == sum(count * each for count, each in zip(rows, fed, strict=True))
    assert got.nfe[1] == 5
    plain = generate(trained, "mar:steps=5", labels=(3, 1), seeds=(5, 6), cfg=cfg)
    assert not np.allclose(latents_of(got)[1], latents_of(plain)[1], atol=0.01)
    assert sum(got.tokens_fed) < sum(plain.tokens_fed) or options == "head_every=7"


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("cfg", [None, 2.5])
@pytest.mark.covers(1)
def test_with_every_step_full_it_is_mar_bit_for_bit(model: ContinuousModel, options: str, cfg: float | None) -> None:
    plain, full = (
        generate(model, f"mar:steps=8{more}", labels=(3, 1), seeds=(5, 6), cfg=cfg)
        for more in ("", f",warmup=8,{options}")
    )
    assert (latents_of(plain) == latents_of(full)).all()
    assert (plain.forward_rows, plain.tokens_fed) == (full.forward_rows, full.tokens_fed)


def test_with_every_transition_full_the_head_is_the_plain_one(model: ContinuousModel) -> None:
    """The chain is so short that every transition is full, so that nothing is reused."""
    plain = generate(model, "mar:steps=8,head=2", seeds=(5,), cfg=2.5)
    assert (
        latents_of(plain) == latents_of(generate(model, "mar:steps=8,head=2,head_every=7", seeds=(5,), cfg=2.5))
    ).all()


def test_without_options_no_other_backbone_is_made(model: ContinuousModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReusingReader, "__init__", lambda *_: pytest.fail("not asked for"))
    generate(model, "mar:steps=4,warmup=1,margin=3", cfg=2.0)


@pytest.mark.parametrize("options", [EVERY[2] + ",head_every=4", "decoder_every=2,layer=2,margin=0,order=local"])
def test_a_row_alone_is_the_row_in_a_batch(trained: ContinuousModel, options: str) -> None:
    spec = f"mar:steps=9,warmup=2,{options}"
    together = generate(trained, spec, labels=(3, 1, 2), seeds=(5, 6, 7), cfg=2.5)
    for row, (label, seed) in enumerate(((3, 5), (1, 6), (2, 7))):
        alone = generate(trained, spec, labels=(label,), seeds=(seed,), cfg=2.5)
        scale = np.abs(latents_of(alone)).max()
        np.testing.assert_allclose(latents_of(together)[row] / scale, latents_of(alone)[0] / scale, atol=1e-4)
        assert together.trace.fed[row] == alone.trace.fed[0]
        assert together.tokens_fed[row] == alone.tokens_fed[0]


def test_positions_that_have_not_changed_are_taken_from_the_first_on(model: ContinuousModel) -> None:
    """Values at layer 0 change only where a token became known; a batch rounds those of the others in its own way."""
    reader = model.backbone.reusing(0)
    assert isinstance(reader, ReusingReader)
    reader.reuse = Reuse(False, 0.0, 4)
    tokens, buffer = model.backbone.tokens, reader.network.buffer
    before = torch.randn(1, buffer + tokens, 2, 8, generator=torch.Generator().manual_seed(0))
    now = before + 1e-6 * torch.randn(before.shape, generator=torch.Generator().manual_seed(1))
    now[:, -1] *= -1
    assert reader._changed(before, now, torch.zeros(1, tokens).bool()).tolist() == [[0, 1, 2, buffer + tokens - 1]]


def steps_by_hand() -> None:
    """LazyMAR's 64 steps: 0 to 4 and every ninth from 5 on are full; its shares at some of the other steps."""
    method = MAR(uncond_every=9, decoder_every=9)
    full = [step for step in range(64) if method.reuse_at(step, 64) == Reuse()]
    assert full == [0, 1, 2, 3, 4, 5, 14, 23, 32, 41, 50, 59]
    shares = {step: method.reuse_at(step, 64).share for step in (6, 19, 20, 21, 25, 31, 36, 40, 63)}
    assert shares == {6: 1.0, 19: 1.0, 20: 0.6, 21: 0.5, 25: 0.4, 31: 0.15, 36: 0.12, 40: 0.05, 63: 0.05}
    assert method.reuse_at(7, 64) == Reuse(True, 1.0, 15)
    assert method.reuse_at(10, 32).share == 0.6  # in proportion
    alone = MAR(uncond_every=9)
    assert alone.reuse_at(6, 64) == Reuse(True, None, 15)
    assert MAR(decoder_every=9).reuse_at(6, 64) == Reuse(False, 1.0, 15)


def test_what_cannot_work_is_refused(model: ContinuousModel) -> None:
    with pytest.raises(SpecError, match="uncond_every=4 must be a multiple of decoder_every=3"):
        resolve("mar:uncond_every=4,decoder_every=3", "continuous")
    with pytest.raises(ModelError, match="the decoder has layers 0 to 3, got layer=4"):
        generate(model, "mar:decoder_every=2,layer=4")
    assert resolve("mar:layer=9", "continuous").exact == "distribution"
    for name in ("uncond", "decoder", "head"):
        assert resolve(f"mar:{name}_every=2", "continuous").exact == "relaxed"
    assert resolve(preset("lazymar").spec, "continuous").exact == "relaxed"


def test_a_backbone_that_keeps_nothing_is_refused() -> None:
    class Other(ToyBackbone):
        def reusing(self, layer: int | None) -> None:
            return None

    with pytest.raises(SpecError, match="other cannot reuse earlier steps"):
        generate(toy("other", ToyHead(2, 3), Other(4, 2)), "mar:uncond_every=2")


def test_steps_by_hand() -> None:
    steps_by_hand()


@pytest.mark.slow  # seconds for 12 images; the tests above have each option
@pytest.mark.seeds("arXiv:2503.12450")
def test_classes_stay_readable_from_two_thirds_of_the_rows_and_half_of_the_tokens(trained: ContinuousModel) -> None:
    steps_by_hand()
    test_each_option_is_its_plain_version(trained, EVERY[2] + ",head_every=3", 2.5)
    model, task = pardec.load("tiny-mar", device="cpu", dtype="float32"), pardec.task("classes")
    problems, right = task.problems(n=6), {}
    for options in ("", ",warmup=2,uncond_every=9,decoder_every=9,layer=1,margin=3"):
        result = model.generate(
            label=[one.label for one in problems], sampler=f"mar:steps=12,head=25{options}", cfg=2.0, seed=0
        )
        right[options] = sum(task.score(one, image) for one, image in zip(problems, result.images, strict=True))
        rows, fed = sum(result.forward_rows) / 6, sum(result.tokens_fed) / 6
    assert rows <= 0.7 * 24
    assert fed <= 0.5 * 24 * 36
    assert right[options] >= right[""] - 1
