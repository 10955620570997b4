"""Values that are not finite end in an error that names their source; the mask id is never a committed token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.images.llamagen import LlamaGenImaging
from pardec.models.kernels.cpu import panels
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.models.stack import Stack
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.masked import loop as masked
from pardec.samplers.masked.contracts import Choice, Logits, MaskedSampler, Propose, Revise, Select
from pardec.samplers.ops.chunked_distribution import ChunkedDistribution
from pardec.samplers.ops.distribution import DenseDistribution, Distribution
from pardec.samplers.request import Allowed
from tests.grids import chequered
from tests.samplers import picture_toys
from tests.samplers.ar_toys import run as run_ar
from tests.samplers.ar_toys import toy_ar
from tests.samplers.toys import EOS, MASK, VOCAB, altered, fill, names, prompts, request, resolved, toy
from tests.samplers.vector_toys import generate, mar

NAN, INF = float("nan"), float("inf")
GIVEN = prompts((3, 5))


def spoilt(model: Any, name: str, value: float = NAN) -> Any:
    """The model with some numbers of one weight replaced."""
    weight = dict(model.decoder.named_parameters())[name]
    with torch.no_grad():
        weight.mT[0] = value
    return model


def outgrown(model: LanguageModel) -> LanguageModel:
    """A model with finite weights whose states are not finite, from layer 1 on."""
    dict(model.decoder.named_parameters())["layers.1.down_weight"].data.mul_(1e38)
    return model


# --- the check ---


@pytest.mark.parametrize(
    ("row", "distribution"), [([0.0, -INF], True), ([NAN, 0.0], False), ([INF, 0.0], False), ([-INF] * 2, False)]
)
def test_a_row_is_sound_unless_it_holds_what_is_no_logit_or_rules_all_out(row: list[float], distribution: bool) -> None:
    rows = torch.tensor([[1.0, 2.0], row])
    assert finite.sound(rows).tolist() == [True, distribution]
    assert bool(finite.highest(rows).isfinite()) is distribution
    pieced = ChunkedDistribution(lambda index: rows[index], 2, 2, torch.arange(2)[None])
    for made in (DenseDistribution(rows[None]), pieced, DenseDistribution(rows[None]).scaled(0.5)):
        assert bool(made.highest().isfinite()) is distribution
    boosted = DenseDistribution(torch.zeros(1, 1, 2)).boosted(
        torch.tensor([[[0]]]), torch.tensor([[[INF if distribution is False else 1.0]]])
    )
    assert bool(boosted.highest().isfinite()) is distribution


def test_weights_of_any_kind_are_read() -> None:
    class Packed:
        is_meta = False

        def numel(self) -> int:
            return 2

        def detach(self) -> Packed:
            return self

        def dequantize(self) -> Tensor:
            return torch.tensor([1.0, NAN])

    every: Any = [("absent", torch.empty(3, device="meta")), ("fine", torch.ones(2)), ("packed", Packed())]
    assert finite.damaged(every) == "its weight packed holds NaN or infinity (1 of 2 numbers)"
    assert finite.damaged(every[:2]) is None


# --- the masked loop ---


@pytest.mark.parametrize(
    "spec", ["threshold", "credit+margin+fixed:steps=2@dual", "prophet:region=all", "wino", "edit"]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.covers(2)
def test_a_weight_of_a_masked_model_is_named(spec: str, temperature: float, value: float) -> None:
    for name in ("embed.weight", "layers.1.qkv_weight", "head.weight"):
        with pytest.raises(ModelError, match=f"toy gives logits that are not finite: its weight {name} ") as boosted:
            fill(spoilt(toy(), name, value), spec, GIVEN, 6, temperature=temperature)
        assert "damaged" in str(boosted.value.hint)


@pytest.mark.parametrize("cfg", [None, 2.0])
def test_a_layer_whose_output_outgrows_its_type_is_named(cfg: float | None) -> None:
    with pytest.raises(ModelError, match=r"the output of layer 1 of 0\.\.1 is the first, in float32"):
        fill(outgrown(toy()), "threshold", GIVEN, 6, cfg=cfg)
    with pytest.raises(ModelError, match="output of its head"):
        fill(altered(toy(), lambda logits: logits * INF), "threshold", GIVEN, 6, cfg=cfg)


def test_guidance_that_outgrows_float32_is_named() -> None:
    model = altered(toy(), lambda logits: logits * 1e35)
    with pytest.raises(SpecError, match="cfg=1000000.0 mixes huge or infinite logits"):
        fill(model, "threshold", GIVEN, 6, cfg=1e6)


def test_tokens_that_both_halves_of_guidance_exclude_are_told() -> None:
    """Minus infinity less itself is not a number: the cause is the mixture, also where states are logits."""

    class Logits(Stack):
        def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
            logits = torch.zeros(*plan.tokens.shape, VOCAB)
            logits[..., 3] = -INF
            return Hidden(plan, logits, lambda states: states)

    model = replace(toy(), decoder=Logits())
    fill(model, "threshold", GIVEN, 6)
    with pytest.raises(SpecError, match="cfg=2.0 mixes huge or infinite logits") as error:
        fill(model, "threshold", GIVEN, 6, cfg=2.0)
    assert "a low logit, not -inf" in str(error.value.hint)


def test_what_is_allowed_and_ruled_out_by_the_model_is_told() -> None:
    def bans(logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.tensor([4]), -INF)

    sets = torch.ones(2, VOCAB, dtype=torch.bool)
    sets[1] = torch.arange(VOCAB) == 4
    rows = [[1, 2, MASK, MASK]]
    at = (torch.tensor([0, 0, 0, 1]),)
    asked = request(rows, [2], allowed=Allowed(sets, at))
    with pytest.raises(SpecError, match="every token is excluded at position 3 of row 0: toy excludes all tokens"):
        list(masked.decode(altered(toy(), bans), registry.resolve("threshold"), asked))
    free = fill(altered(toy(), bans), "threshold", GIVEN, 6)  # a token that the model rules out is no error
    assert not (free.tokens[:, 5:] == 4).any()


@dataclass(frozen=True)
class Spoils(Logits):
    """A logits stage that returns values that are not finite."""

    value: float

    def logits(self, evidence: Any, canvas: Any, state: None) -> Distribution:
        return DenseDistribution(evidence.logits.masked_fill(evidence.positions[..., None] == 6, self.value))


@pytest.mark.parametrize(("value", "said"), [(NAN, "NaN or infinite"), (INF, "NaN or infinite"), (-INF, "is excluded")])
def test_a_logits_stage_is_named(value: float, said: str) -> None:
    made = replace(registry.resolve("threshold"), logits=(Spoils(value),))
    asked = request([[*given, *[MASK] * 6] for given in GIVEN], [3, 5])
    with pytest.raises(SpecError, match=f"{said} at position 6 of row . after Spoils, a stage of the sampler"):
        list(masked.decode(toy(), made, asked))


# --- infinity in the head alone ---


def pierced(model: Any, value: float, name: str = "head.weight") -> Any:
    """A model with one changed number in its head: a token's logit is -inf wherever that state is negative."""
    with torch.no_grad():
        dict(model.decoder.named_parameters())[name][5, 2] = value
    return model


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_number_of_the_head_that_is_none_is_named_before_anything_is_decoded(value: float) -> None:
    said = r"toy gives logits that are not finite: its weight head.weight holds NaN or infinity \(1 of"
    for given in GIVEN:  # one where the token is ruled out, and nothing looks wrong, and one where it is not
        with pytest.raises(ModelError, match=said):
            fill(pierced(toy(), value), "sequential", [given], 6)
        with pytest.raises(ModelError, match=said):
            run_ar(pierced(toy_ar(3, 8), value), "sequential", [given], 6)


def test_the_head_is_read_once_and_huge_numbers_in_it_are_no_error() -> None:
    model = toy()
    finite.demand_head(model)
    finite.demand_head(pierced(model, INF))  # it was sound when it was read
    huge = toy()
    dict(huge.decoder.named_parameters())["head.weight"].data[:, 0] = 3e38
    finite.demand_head(huge)
    with pytest.raises(ModelError, match="head.weight"):
        finite.demand_head(replace(pierced(toy(), INF), name="a copy of toy"))


def test_heads_of_every_kind_are_read() -> None:
    class Held:
        """A stack with only a head."""

        def __init__(self, weight: Tensor, bias: bool = False) -> None:
            self.head = torch.nn.Linear(8, 12, bias=bias)
            self.head.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.named_parameters = self.head.named_parameters

    def holding(*given: Any, **more: Any) -> LanguageModel:
        return replace(toy(), decoder=Held(*given, **more))

    whole = torch.ones(12, 8)
    spoiled = whole.clone()
    spoiled[11, 3] = INF
    lying = panels.empty(12, 8)
    lying.fill(spoiled)
    for weight in (spoiled, spoiled.half(), spoiled.bfloat16(), lying):
        with pytest.raises(ModelError, match=r"its weight weight holds NaN or infinity \(1 of 96"):
            finite.demand_head(holding(weight))
    finite.demand_head(holding((whole * 6e4).half()))  # their sum is no float16
    finite.demand_head(holding(torch.empty(12, 8, device="meta")))  # accelerate brings it when it runs
    ruled = holding(whole, bias=True)
    ruled.decoder.head.bias.data[3] = -INF  # type: ignore[attr-defined]
    finite.demand_head(ruled)  # a bias of -inf rules a token out everywhere, and means to
    finite.demand_head(replace(toy(), decoder=object()))  # type: ignore[arg-type]


@pytest.mark.usefixtures("near")
def test_the_head_of_a_drafting_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = replace(pierced(toy_ar(4, 8), INF), name="drafting toy")
    monkeypatch.setattr(draft_models, "language_model", lambda *_: drafting)
    with pytest.raises(ModelError, match="drafting toy gives .*: its weight head.weight "):
        run_ar(toy_ar(3, 8), "model:name=x", [[1, 2]], 5)


# --- the mask id ---


@dataclass(frozen=True)
class SaysMask(Propose, Select, Revise):
    """A stage that returns the mask id."""

    def propose(self, evidence: Any, canvas: Any) -> Any:
        return evidence.propose(
            torch.full_like(evidence.positions, MASK), torch.ones_like(evidence.distribution.greedy[1])
        )

    def select(self, proposal: Any, canvas: Any, state: None) -> Choice:
        return Choice(proposal.eligible, torch.full_like(proposal.tokens, MASK))

    def revise(self, chosen: Tensor, proposal: Any, canvas: Any, state: None) -> Any:
        which = canvas.committed
        return masked.Revision(rewrite=masked.Update(which, torch.full_like(proposal.tokens, MASK), proposal.score))


@pytest.mark.parametrize("stage", ["propose", "select", "revise"])
def test_a_stage_that_chooses_the_mask_id_is_refused_by_name(stage: str) -> None:
    one: Any = SaysMask()
    made: MaskedSampler = replace(registry.resolve("sequential"), **{stage: (one,) if stage == "revise" else one})
    asked = request([[*given, *[MASK] * 6] for given in GIVEN], [3, 5])
    with pytest.raises(SpecError, match=rf"mask token \(id {MASK}\) was chosen .* by SaysMask") as boosted:
        list(masked.decode(toy(), made, asked))
    assert "reopen" in str(boosted.value.hint)


def test_masks_that_were_given_and_padding_are_nobodys_choice() -> None:
    model = toy(sharp=1.2)
    model = replace(model, decoding_config=replace(model.decoding_config, pad_id=MASK))
    given = [[1, MASK, 2], [3, 4, 5, 6]]
    done = fill(model, "threshold:tau=0.1+eos", given, 8, stop_ids=(EOS, 0, 1, 2, 3))
    assert done.tokens[0, 1] == MASK


def adversarial(seed: int) -> Callable[[Tensor], Tensor]:
    """Logits of every size and kind: huge, tiny, equal, -inf, sometimes NaN."""
    drawn = np.random.RandomState(seed)
    kind = seed % 8

    def change(logits: Tensor) -> Tensor:
        noise = torch.from_numpy(drawn.standard_normal(tuple(logits.shape))).float()
        made = logits * 10.0 ** drawn.randint(-40, 39)
        if kind == 1:
            made = noise.sign() * 3.4e38
        elif kind == 2:
            made = torch.full_like(logits, -3.4e38)
        elif kind == 3:
            made = logits.masked_fill(noise > 0, -INF)
        elif kind == 4:
            made = torch.where(noise > 2.5, torch.tensor((NAN, INF, -INF)[drawn.randint(3)]), logits)
        elif kind == 5:
            made = torch.full_like(logits, -INF)
            made[..., MASK] = 3.0
        elif kind == 6:
            made = (noise * 7e4).to((torch.float16, torch.bfloat16)[drawn.randint(2)])
        elif kind == 7:
            made = logits * 0
            made[..., MASK] = (INF, NAN, 3e38)[drawn.randint(3)]
        return made

    return change


LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1e-6},
    {"temperature": 1e6, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 2, "cfg": 3.0},
]
PARTS = [
    *names("propose"),
    *(f"{name}" for name in names("select") if name != "learned"),
    *(f"{name}+threshold:tau=0.6" for stage in ("logits", "inputs", "widen", "revise") for name in names(stage)),
    "prophet:region=all+threshold",
    "eos+confidence:of=filtered",
    "credit+entropy+localleap+wino+edit+remdm",
    "timesteps:alg_temp=1e-6",
]


@pytest.mark.parametrize("spec", [spec for spec in PARTS if resolved(spec)])
def test_whatever_the_logits_the_mask_id_is_never_committed(spec: str) -> None:
    """Either an error of one line, or a text without the mask id; if only some tokens are excluded, always the text."""
    refused: list[tuple[int, bool, str]] = []
    first = 8 * (len(spec) % 2)
    for seed in range(first + len(spec) // 2 % 2, first + 8, 2):  # every other kind of logits, the rest in other specs
        distribution = LAWS[(seed + len(spec)) % len(LAWS)]
        model = altered(toy(("llada", "dream")[(seed + first // 8) % 2], seed=seed), adversarial(seed))
        try:
            done = fill(model, spec, GIVEN, 6, seeds=[seed, seed + 1], **distribution)
        except PardecError as error:
            refused.append((seed % 8, "cfg" in distribution, str(error)))
            continue
        for row, given in enumerate(GIVEN):
            made = done.tokens[row, len(given) : int(done.trace.lengths[row])]
            assert not (made == MASK).any(), (spec, seed)
            assert ((made >= 0) & (made < VOCAB)).all()
    assert all("\n" not in said for _, _, said in refused)
    assert [each for each in refused if each[0] == 3 and not each[1]] == []


# --- the verify loop ---


class Bad:
    """A logits processor that returns no distribution from some length on."""

    def __init__(self, value: float, length: int = 0) -> None:
        self.value, self.length = value, length

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores if ids.shape[1] < self.length else torch.full_like(scores, self.value)


AR = ["sequential", "lookup", "sjd", "recycling", "earlyexit", "layerskip", "model:name=toy", "model:name=toy+template"]
ACCEPTS = [f"sjd+{card.name}" for card in registry.cards() if card.stage == "accept"]


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_models, "language_model", lambda *_: toy_ar(3, 8, layers=4))


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize(("spec", "temperature"), chequered([*AR, *ACCEPTS], [0.0, 1.0]))
def test_a_weight_or_a_processor_of_an_autoregressive_model_is_named(spec: str, temperature: float) -> None:
    try:
        registry.resolve(spec, "ar", sampling=temperature > 0)
    except SpecError:
        return
    given = [[1, 2, 3, 1, 2], [4], [5, 6]]
    for name in ("embed.weight", "layers.3.out_weight", "head.weight"):
        looked_at = "|the image codebook, .* contain NaN" if name == "embed.weight" else ""
        with pytest.raises(ModelError, match=f"toy gives logits that are not finite: its weight {name} {looked_at}"):
            run_ar(spoilt(toy_ar(3, 8, layers=4), name), spec, given, 6, temperature=temperature)
    for value in (NAN, INF, -INF):
        for processor in (Bad(value), Bad(value, 7)):
            with pytest.raises(SpecError, match="the logits processor Bad excludes every token, or returns NaN"):
                run_ar(
                    toy_ar(3, 8, layers=4),
                    spec,
                    given,
                    6,
                    temperature=temperature,
                    processors=(lambda ids, scores: scores, processor),
                )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain", "template", "beam", "dyspec"])
def test_a_drafting_model_is_named_and_does_not_pass_for_its_target(
    shape: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafting = replace(spoilt(toy_ar(4, 8), "layers.1.down_weight"), name="drafting toy")
    monkeypatch.setattr(draft_models, "language_model", lambda *_: drafting)
    with pytest.raises(ModelError, match="drafting toy gives .*: its weight layers.1.down_weight "):
        run_ar(toy_ar(3, 8), f"model:name=x+{shape}", [[1, 2], [3]], 5, temperature=temperature)


def test_a_layer_of_an_autoregressive_model_is_named() -> None:
    with pytest.raises(ModelError, match=r"layer 1 of 0\.\.3 is the first"):
        run_ar(outgrown(toy_ar(3, 8, layers=4)), "lookup", [[1, 2], [3]], 5)


# --- pictures ---


def test_pictures_name_what_is_not_finite() -> None:
    model, captions = picture_toys.toy_pictures(5, 3, 7), picture_toys.features((2, 3))
    other = spoilt(picture_toys.toy_pictures(5, 3, 7), "layers.0.down_weight")
    with pytest.raises(ModelError, match="its weight layers.0.down_weight "):
        picture_toys.draw(other, "sjd", captions, cfg=3.0)
    with pytest.raises(ModelError, match="conditions are not finite") as boosted:
        picture_toys.draw(model, "sequential", [captions[0], captions[1] * NAN])
    assert "prompt_embeds" in str(boosted.value.hint)
    decoder = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="the image decoder of toy .* though its weights are"):
        finite.pixels("toy", torch.full((1, 3, 2, 2), INF), decoder)
    torch.nn.init.constant_(decoder.weight, NAN)
    with pytest.raises(ModelError, match="toy gives pixels that are not finite: its weight weight "):
        finite.pixels("toy", torch.full((1, 3, 2, 2), NAN), decoder)


@pytest.mark.parametrize("weight", ["cap_proj.fc1.weight", "cap_proj.fc2.weight", "uncond_embedding"])
def test_weights_that_read_a_condition_are_named(weight: str) -> None:
    model = picture_toys.toy_pictures(5, 3, 7)
    assert isinstance(model.imaging, LlamaGenImaging)
    dict(model.imaging.embedder.named_parameters())[weight].data[0] = NAN
    with pytest.raises(ModelError, match=f"toy pictures gives states .* not finite: its weight {weight} "):
        picture_toys.draw(model, "sjd", picture_toys.features((2, 3)), cfg=3.0)


@pytest.mark.parametrize("spec", ["mar:steps=4", "sequential", "seeded_jacobi:steps=4"])
@pytest.mark.parametrize("part", ["backbone", "head"])
@pytest.mark.covers(1)
def test_models_of_vectors_name_what_is_not_finite(spec: str, part: str) -> None:
    model: Any = mar()
    name, weight = list(getattr(model, part).named_parameters())[3]  # the backbone's first ones serve training
    with torch.no_grad():
        weight.fill_(NAN)
    with pytest.raises(ModelError, match=f"mar-0-None gives .* that are not finite: its weight {name} "):
        generate(model, spec, count=2)
