"""The driver of masked models: diffusion language models, of text and of image codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.masked import compatibility
from pardec.samplers.masked import loop as masked
from pardec.samplers.masked.compatibility import fit
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.spec import Part, Policy, Spec, parse

from ..requests.generation_config import with_published_sampler
from ..requests.preflight import check_block
from ..serving.running import Progress
from .text import TextCall, TextDriver

if TYPE_CHECKING:
    from pardec.samplers.events import Event
    from pardec.samplers.request import Request

    from ..requests.prompts import Row
    from ..requests.settings import Settings

BLOCK = 32  # the default block length, where the request is not shorter
_EXACT_CACHES: dict[str, Part] = {  # per kind of attention, if it has an exact cache
    "block-causal": Part("block"),
    "windowed-causal": Part("window", (("slide", "false"),)),
    "causal-prefix": Part("causal"),
}


class MaskedDriver(TextDriver):
    """Fills canvases in any order, by the masked loop."""

    family = "masked"
    main_stage = "select"
    tunes_caches = True
    swept = "threshold"
    is_masked = True
    feeds_prompts = False
    bench_samplers = ("sequential", "sequential@dual")

    @classmethod
    def drives(cls, network: Any) -> bool:
        return isinstance(network, LanguageModel) and network.decoding_config.masked

    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> TextCall:
        return super().prepare(prompt, with_published_sampler(self.network, arguments))

    def decode(self, call: TextCall, *, steps: bool) -> Iterator[Event]:
        return masked.decode(self.network, call.sampler, call.request, steps=steps)

    def sampler(self, settings: Settings) -> MaskedSampler:
        """The sampler that runs; a spec without a cache gets the family's exact one, if there is one."""
        model, value = self.network, settings.sampler
        if isinstance(value, registry.Resolved) and not isinstance(value, MaskedSampler):
            family = registry.FAMILY_LABELS[registry.family_of_sampler(value)]
            raise SpecError(f"{value.spec} is for {family} and {model.name} is masked", hint="name another sampler")
        sampler = registry.resolve(value, "masked")
        exact = _exact_cache(model)
        if exact is not None and not isinstance(value, MaskedSampler) and _names_no_cache(value):
            try:  # if a stage refuses that cache, the sampler keeps its own, which branches and windows cannot use
                sampler = registry.resolve(replace(sampler.spec, cache=exact), "masked")
            except SpecError:
                if sampler.branch is not None or exact.name == "next_sequence":
                    raise
        compatibility.check(sampler, model, published=True)
        return fit(sampler, model)

    def check(self, sampler: MaskedSampler, request: Request) -> None:
        compatibility.check(sampler, self.network, request)

    def own_fields(self, sampler: Any, settings: Settings, rows: list[Row]) -> dict[str, Any]:
        model, longest = self.network, max(len(row.rest) for row in rows)
        block_causal = model.decoding_config.attention == "block-causal"
        fixed = model.decoding_config.block if block_causal else None
        check_block(model.name, settings.block_length, longest, fixed)
        usual = longest if model.imaging is not None else self._usual_block  # an image is one block
        length = fixed or settings.block_length or min(usual, longest)
        return {"block_length": length, "absolute": block_causal or settings.block_align == "absolute"}

    def batch_block(self, settings: Settings) -> int | None:
        fixed = self.network.decoding_config.attention == "block-causal" or settings.block_length is not None
        return None if fixed or settings.block_align != "prompt" else self._usual_block

    @property
    def _usual_block(self) -> int:
        """The default block length of requests that are not shorter: the model's, or BLOCK."""
        return self.network.decoding_config.block or BLOCK

    def start(self, sampler: Any, request: Request, running: masked.MaskedLoop | None) -> masked.MaskedLoop:
        columns = 0 if running is None else running.canvas.length
        return masked.MaskedLoop(self.network, sampler, request, columns=columns)

    def step(self, loop: masked.MaskedLoop) -> int:
        loop.step()
        return 0

    def progress(self, loop: masked.MaskedLoop, at: int) -> Progress:
        canvas = loop.canvas
        total, settled, nfe = int(canvas.total[at]), int(canvas.settled[at]), int(canvas.nfe[at])
        return Progress(canvas.tokens_host[at, :total], canvas.open_host[at, :total], settled, nfe)

    @classmethod
    def references(cls, spec: Spec) -> dict[str, tuple[str, ...]]:
        """`eos` stays in the floor. Without it, the baseline `sequential` gives the same tokens up to the end token."""
        eos = [part for part in spec.parts if part.name == "eos"]
        oracle = Spec((Part("oracle"), *eos), spec.cache)
        return {"floor": (str(oracle),), "baseline": ("sequential+eos", "sequential")}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        """`threshold` and `fixed`, each with the `eos` of the spec if it has one."""
        ends = tuple(part for part in spec.parts if part.name == "eos")
        return [Spec((Part(name), *ends)) for name in ("threshold", "fixed")]


def with_own_cache(model: LanguageModel, sampler: MaskedSampler) -> MaskedSampler:
    """Adds the cache that causal-prefix families need to a `sampler` whose spec names no cache."""
    exact = _exact_cache(model)
    if exact is None or model.decoding_config.attention != "causal-prefix":
        return sampler
    cache = registry.resolve(Spec((Part("threshold"),), exact), "masked")
    changed = replace(sampler, cache=cache.cache, spec=replace(sampler.spec, cache=cache.spec.cache))
    compatibility.check(changed)
    return changed


def _exact_cache(model: LanguageModel) -> Part | None:
    """The cache that a spec without one gets."""
    config = model.decoding_config
    if config.attention == "causal-prefix" and config.shift:
        return Part("next_sequence")
    return _EXACT_CACHES.get(config.attention)


def _names_no_cache(sampler: str | Spec | Policy | None) -> bool:
    return sampler is None or parse(sampler).cache is None
