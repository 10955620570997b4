"""The interface of drivers, which `Model` calls to decode a family of models, from a prompt to a result.

A driver has a loaded network and no state of any request. `prepare` checks a request and refuses what cannot work,
before the first forward; `decode` is the family's loop; `result` has the fields of a `Result` that differ between
families; `batch` decodes rows of several requests at once. The rest of `pardec` knows only this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.samplers.rng import row_seeds
from pardec.samplers.spec import Spec

from ..requests.images import render

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel
    from pardec.samplers.cards import Family
    from pardec.samplers.events import Event, Finished

    from ..requests.argument import Takes
    from ..requests.call import Call
    from ..requests.settings import Settings
    from ..serving.rows import QueuedRow
    from ..serving.running import Decoding, RunningBatch


class Driver(ABC):
    """Prepares and decodes requests for one family of models."""

    family: ClassVar[Family]
    defaults: ClassVar[Mapping[str, Any]] = {}  # defaults of `generate` that differ from those of `Settings`
    image_tokens: ClassVar[str] = "codes"  # what an image consists of
    image_decoder: ClassVar[str] = "image tokenizer"  # the part that decodes them to pixels
    least_cfg: ClassVar[float] = 1.0  # the value of `cfg` that means no guidance
    drawn: ClassVar[str] = ""  # what the model draws; empty for language models
    main_stage: ClassVar[str | None] = None  # the stage that every sampler needs; None: `tune` searches none
    compared: ClassVar[str] = ""  # samplers for `compare`, if `tune` searches none
    tunes_caches: ClassVar[bool] = False  # whether `tune` tries further caches that keep the tokens
    swept: ClassVar[str | None] = None  # the method whose parameter a sweep varies by default
    compares_tokens: ClassVar[bool] = True  # whether rows of two samplers can be compared token by token

    def __init__(self, network: Any) -> None:
        self.network = network

    @classmethod
    @abstractmethod
    def drives(cls, network: Any) -> bool:
        """Whether this driver decodes the network."""

    @property
    def language_model(self) -> LanguageModel:
        """The network of a model of token sequences. Raises ModelError for any other."""
        raise ModelError(
            f"{self.network.name} draws {self.drawn} and is not a language model", "model.network is the loaded network"
        )

    @property
    @abstractmethod
    def takes(self) -> Takes:
        """Which arguments of `generate` have a meaning."""

    # --- one request ---

    @abstractmethod
    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> Call:
        """Reads the prompt and checks every argument, without a forward.

        Raises:
            SpecError: an argument that cannot work.
            ModelError: a sampler that cannot run on the model.
        """

    @abstractmethod
    def decode(self, call: Any, *, steps: bool) -> Iterator[Event]:
        """The events of the family's loop; without `steps` it omits the events of steps, which saves time."""

    def result(self, call: Call, end: Finished, tokens: list[list[int]], *, draw: bool) -> dict[str, Any]:
        """The fields of a `Result` that differ between families.

        Args:
            tokens: the generated ones of each row.
            draw: decode images; without it they are left out.
        """
        codes = () if call.imaging is None else (call.imaging.layout.codes(torch.tensor(row)) for row in tokens)
        return {"sequences": torch.as_tensor(end.tokens), "images": self.images(call, codes, draw=draw)}

    def check_drawable(self, *, hint: str) -> None:
        """Raises ModelError if codes cannot be decoded to images; {decoder} in `hint` becomes the missing part."""
        if not self.network.imaging.can_decode:
            message = f"{self.network.name} has no {self.image_decoder}, so its {self.image_tokens} cannot be decoded"
            raise ModelError(f"{message} to images", hint.replace("{decoder}", self.image_decoder))

    def images(self, call: Call, codes: Iterable[Tensor], *, draw: bool) -> list[Any] | None:
        """Decodes codes or vectors to images; None for text, and without a decoder."""
        return render(call.imaging, codes) if draw and call.imaging is not None else None

    # --- many requests ---

    @abstractmethod
    def batch(self, model: Decoding, rows: Sequence[QueuedRow]) -> RunningBatch:
        """A batch of these rows, which have the same key and sampler."""

    def batch_block(self, settings: Settings) -> int | None:
        """The common block length of rows in a batch, if shorter rows decode the same with it; None: each its own."""
        return None

    def in_steps(self, steps: int) -> str | None:
        """The sampler for diffusers' `num_inference_steps`; None where steps have no such meaning."""
        return None

    # --- comparisons ---

    @property
    def mask_id(self) -> int | None:
        """The mask token; None for models that have none."""
        return None

    def check_drafts(self, sampler: Any) -> None:
        """Raises ModelError for a resolved sampler whose drafter does not support the model."""
        return

    @classmethod
    def references(cls, spec: Spec) -> dict[str, tuple[str, ...]]:
        """The specs that can be the `floor` and the `baseline` of a sampler, the default first."""
        return {}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        """The samplers that a sweep compares another one with, the most important first."""
        return []

    @property
    def bench_samplers(self) -> tuple[str, ...]:
        """The specs that `bench` times by default."""
        return ("sequential",)

    def cost_ratio(self, sampler: Any) -> float | None:
        """The time of the drafter's forward divided by that of the model's forward; None where it is not known."""
        return None


def seeds_of(settings: Settings, count: int) -> tuple[int, ...]:
    """One seed per row. Raises SpecError for a list of another length."""
    if not isinstance(settings.seed, Sequence):
        return row_seeds(int(settings.seed), count)
    if len(settings.seed) != count:
        raise SpecError(f"{len(settings.seed)} seeds for {count} rows", hint="give one seed, or one per row")
    return tuple(int(seed) for seed in settings.seed)
