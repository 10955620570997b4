"""The base of the drivers of image models that are not language models: vectors and token maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pardec.models.errors import SpecError

from ..requests.images import captions, imaging_for, labels, refuse_negative
from ..requests.settings import CLASS_IMAGES, MAX_NEW_TOKENS, Settings, repeat_each
from ..serving.running import WholeBatch
from .base import Driver

if TYPE_CHECKING:
    from pardec.models.images.contracts import Condition, ImageModel, Imaging
    from pardec.samplers.events import Event

    from ..serving.rows import QueuedRow
    from ..serving.running import Decoding

NO_CLASS = -1  # the label of an unconditional image


class ImageDriver(Driver):
    """The driver of image models that are not language models."""

    defaults = CLASS_IMAGES
    compares_tokens = False  # images are sampled, and vectors are hardly ever equal
    network: ImageModel
    of_tokens: str  # the tokens of an image, with a preposition
    network_class: ClassVar[type[ImageModel]]
    loop: ClassVar[Callable[..., Iterator[Event]]]

    @classmethod
    def drives(cls, network: Any) -> bool:
        return isinstance(network, cls.network_class)

    def decode(self, call: Any, *, steps: bool) -> Iterator[Event]:
        return self.loop(self.network, call.sampler, call.request, steps=steps)

    def imaging(self, settings: Settings) -> Imaging:
        """The interface for images of the requested size. Raises SpecError for arguments without a meaning."""
        name, imaging = self.network.name, imaging_for(self.network.imaging, settings)
        settings.check_taken(name, self.takes)
        count = imaging.layout.tokens
        if settings.max_new_tokens not in (MAX_NEW_TOKENS, count) or settings.block_align != "prompt":
            wrong = "block_align" if settings.block_align != "prompt" else "max_new_tokens"
            raise SpecError(
                f"an image of {name} has {count} tokens, got {wrong}={getattr(settings, wrong)}",
                hint=f"leave {wrong} out",
            )
        return imaging

    def conditions(self, prompt: Any, settings: Settings) -> tuple[tuple[int, ...], tuple[Condition, ...]]:
        """The classes, or the captions, of all rows. Raises SpecError for what the model cannot draw."""
        if self.network.imaging.kind == "class":
            return self.classes(prompt, settings), ()
        return (), tuple(repeat_each(captions(self.network, prompt, settings), settings.num_images))

    def classes(self, prompt: Any, settings: Settings) -> tuple[int, ...]:
        """The class of each row. Raises SpecError for a caption, and for a class that the model does not have."""
        name = self.network.name
        refuse_negative(name, settings)
        each = labels(name, self.network.imaging.classes, prompt, settings, least=NO_CLASS)
        return tuple(repeat_each(each, settings.num_images))

    def batch(self, model: Decoding, rows: Sequence[QueuedRow]) -> WholeBatch:
        first, *others = (row.request for row in rows)
        waits = f"images {self.of_tokens} are generated a whole batch at a time"
        return WholeBatch(model, rows, first.join(others), waits)
