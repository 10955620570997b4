"""The contract of drivers: what `Model` asks of a family of models, from a prompt to a result.

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

    from ..requests.call import Call
    from ..requests.settings import Settings
    from ..serving.rows import QueuedRow
    from ..serving.running import Decoding, RunningBatch


class Driver(ABC):
    """What `Model` does with one family of models."""

    family: ClassVar[Family]
    defaults: ClassVar[Mapping[str, Any]] = {}  # of arguments of `generate`, where they differ from those of `Settings`
    image_tokens: ClassVar[str] = "codes"  # what an image consists of
    image_decoder: ClassVar[str] = "image tokenizer"  # what turns them into pixels
    least_cfg: ClassVar[float] = 1.0  # the number of `cfg` that means no guidance
    drawn: ClassVar[str] = ""  # what it draws, where it is no language model
    main_stage: ClassVar[str | None] = None  # the stage that makes one of its samplers; None: `tune` searches none
    compared: ClassVar[str] = ""  # samplers that `compare` can be given where `tune` searches none
    tunes_caches: ClassVar[bool] = False  # whether `tune` tries caches that are not named: those that keep the tokens
    swept: ClassVar[str | None] = None  # the method whose parameter a sweep varies where a sampler has none of its own
    compares_tokens: ClassVar[bool] = True  # whether rows of two samplers can be compared token by token

    def __init__(self, network: Any) -> None:
        self.network = network

    @classmethod
    @abstractmethod
    def drives(cls, network: Any) -> bool:
        """Whether a network is of this family."""

    @property
    def language_model(self) -> LanguageModel:
        """The network of a model of token sequences. Raises ModelError for any other."""
        raise ModelError(
            f"{self.network.name} draws {self.drawn} and is no language model", "model.network is what was loaded"
        )

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
        """The events of the family's loop; without `steps` none for steps, which saves time."""

    def result(self, call: Call, end: Finished, tokens: list[list[int]], *, draw: bool) -> dict[str, Any]:
        """The fields of a `Result` that differ between families.

        Args:
            tokens: the generated ones of each row.
            draw: decode images; without it they are left out.
        """
        codes = () if call.imaging is None else (call.imaging.layout.codes(torch.tensor(row)) for row in tokens)
        return {"sequences": torch.as_tensor(end.tokens), "images": self.images(call, codes, draw=draw)}

    def check_drawable(self, *, hint: str) -> None:
        """Raises ModelError without a decoder to images; {decoder} in `hint` is replaced by what is missing."""
        if not self.network.imaging.can_decode:
            message = f"{self.network.name} has no {self.image_decoder}, so its {self.image_tokens} cannot be decoded"
            raise ModelError(f"{message} to images", hint.replace("{decoder}", self.image_decoder))

    def images(self, call: Call, codes: Iterable[Tensor], *, draw: bool) -> list[Any] | None:
        """The images of codes, or vectors; None for text, and without a decoder."""
        return render(call.imaging, codes) if draw and call.imaging is not None else None

    # --- many requests ---

    @abstractmethod
    def batch(self, model: Decoding, rows: Sequence[QueuedRow]) -> RunningBatch:
        """A batch of these rows, which have one key and one sampler."""

    def batch_block(self, settings: Settings) -> int | None:
        """The block length of rows that share a batch, where a shorter row decodes the same in it; None: their own."""
        return None

    def in_steps(self, steps: int) -> str | None:
        """The sampler that diffusers' `num_inference_steps` asks for; None where steps have no such meaning."""
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
        """The `floor` and the `baseline` of a sampler: for each the specs that can be it, the first one by default."""
        return {}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        """The samplers that a sweep judges another one against, the first of them above all."""
        return []

    @property
    def bench_samplers(self) -> tuple[str, ...]:
        """The specs that `bench` times where none is named."""
        return ("sequential",)

    def cost_ratio(self, sampler: Any) -> float | None:
        """What a forward of the sampler's drafter costs, in forwards of the model; None where it is not known."""
        return None


def seeds_of(settings: Settings, count: int) -> tuple[int, ...]:
    """One seed a row. Raises SpecError where a list has another length."""
    if not isinstance(settings.seed, Sequence):
        return row_seeds(int(settings.seed), count)
    if len(settings.seed) != count:
        raise SpecError(f"{len(settings.seed)} seeds for {count} rows", hint="give one seed, or one per row")
    return tuple(int(seed) for seed in settings.seed)
