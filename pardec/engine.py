"""A loaded network and the three steps of a request: prepare, run, result."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import torch

from pardec.models.cuda_graphs.runner import runner
from pardec.models.errors import ModelError
from pardec.models.kernels.choice import prepare
from pardec.models.parallel.threads import threads_for
from pardec.models.printable import plain
from pardec.samplers import ops as sampler_ops
from pardec.samplers.events import Event, Finished, RowFinished

from .drivers import driver_of
from .environment import versions
from .memory import memory_errors
from .requests.call import Call
from .requests.prompts import open_id
from .requests.settings import AnyNames, own_names
from .result import Result
from .result_data import Timing, plain_row
from .serving.streaming import RowText, Texts, answer, decoded

if TYPE_CHECKING:
    from pardec.models.caches.prefix_cache import PrefixCache
    from pardec.models.images.contracts import ImageModel, Imaging
    from pardec.models.model import LanguageModel
    from pardec.samplers.cards import Family


class Engine:
    """A loaded network. Holds no state of any request, so calls may be interleaved."""

    def __init__(self, network: LanguageModel | ImageModel) -> None:
        self.network, self.driver = network, driver_of(network)
        prepare(network.device, network.dtype, Path(sampler_ops.__path__[0]))

    @property
    def language_model(self) -> LanguageModel:
        """The network of a model of token sequences. Raises ModelError for one of continuous tokens or token maps."""
        return self.driver.language_model

    @property
    def family(self) -> Family:
        """The kind of its samplers: "masked", "ar", "continuous" for continuous tokens, "scales" for token maps."""
        return self.driver.family

    @property
    def name(self) -> str:
        return self.network.name

    @property
    def weight_settings(self) -> dict[str, Any]:
        """The arguments of `load` that set how its weights are stored, as used: quantize, packed, activations."""
        own = {name: getattr(self.network, name, None) for name in ("packed", "activations")}
        return {name: value for name, value in {"quantize": self.quantized, **own}.items() if value}

    @property
    def quantized(self) -> str | None:
        """The quantization of its linear layers ("int8", "int4", "fp8"), or None."""
        return self.network.quantized

    @property
    def imaging(self) -> Imaging | None:
        """The parts of an image model in addition to its network: token layout, conditions, decoder. None for text."""
        return self.network.imaging

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """The stored K/V of prompt prefixes that requests share, and their statistics; None where it is off."""
        return self.network.prefix_cache

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, or None."""
        return self.network.tokenizer

    @property
    def _reader(self) -> Any:
        """The tokenizer that turns ids into text; None for an image model, whose ids are codes."""
        return self.tokenizer if self.imaging is None else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The checkpoint's config.json as published."""
        return self.network.config

    @property
    def path(self) -> Path | None:
        """The folder the weights came from."""
        return self.network.path

    def __repr__(self) -> str:
        return plain(f"<Model {self.network.describe()}>")

    def prepare(self, prompt: Any = None, **arguments: Unpack[AnyNames]) -> Call:
        """Reads the prompt and checks every argument, without a forward."""
        return self.driver.prepare(prompt, own_names(arguments))

    def run(self, call: Call, *, text: bool = False, steps: bool = True) -> Iterator[Event]:
        """Runs the loop and yields its events, with their text if `text` is set or the call has a callback.

        Without `steps` there are no events for steps, which saves time.
        """
        texts = Texts(self._reader if text or call.callback is not None else None, call)
        self.check_weights_unchanged(call.weights_version)
        size = f"{len(call.seeds)} rows of up to {max(call.lengths)} tokens"
        with memory_errors(size, "decode fewer prompts at once (--batch-size), or fewer tokens"):
            loop = self.driver.decode(call, steps=steps)
            with closing(cast("Generator[Event]", loop)) as events:  # frees memory at once, however this ends
                network, version = self.network, call.weights_version
                for raw_event in stepping(events, self.set_threads):
                    if network.weights_version != version:
                        self.check_weights_unchanged(version)
                    event = texts(raw_event)
                    if call.callback is not None:
                        call.callback(event)
                    yield event
                    if network.weights_version != version:
                        self.check_weights_unchanged(version)

    def check_weights_unchanged(self, version: int) -> None:
        """Raises ModelError unless the weights have this version, with which the K/V of a request were computed."""
        if version != self.network.weights_version:
            raise ModelError(
                f"the weights of {self.name} were replaced after this request was prepared (version {version}, now "
                f"{self.network.weights_version}): its keys and values are those of the old ones",
                "finish or close requests before load_weights, and start them again after it",
            )

    @property
    def set_threads(self) -> int | None:
        return threads_for(self.network.device, self._parameters)

    @cached_property
    def _parameters(self) -> int:
        """The number of the checkpoint's parameters, counted once."""
        return self.network.parameters

    @property
    def threads(self) -> int:
        """The number of CPU threads that decode."""
        return self.set_threads or torch.get_num_threads()

    def text(self, tokens: list[int]) -> str | None:
        """Decodes ids to text without special tokens; None without a tokenizer, and for an image model."""
        return None if self._reader is None else decoded(self._reader, tokens)

    def row_text(self, call: Call, row: int = 0) -> RowText:
        """The final text of a row of a call, updated as its tokens are committed."""
        return RowText(self._reader, call, row, call.request.canvases[row].numpy() == open_id(self.language_model))

    def row(self, call: Call, end: RowFinished) -> dict[str, Any]:
        """A finished row as plain JSON values."""
        tokens, generated = call.generated(end.row, end.tokens.tolist())
        start = call.prompts[end.row]
        span = slice(start, start + len(tokens))
        return plain_row(
            text=None if self._reader is None else answer(self._reader, call, end.row, tokens),
            tokens=tokens,
            finish=end.reason,
            nfe=end.nfe,
            generated=generated,
            seed=call.seeds[end.row],
            step_map=None if end.commit_step is None else np.maximum(end.commit_step[span].astype(np.int64), -1),
            logprobs=None if end.logprobs is None else end.logprobs[span],
        )

    def environment(self) -> dict[str, str]:
        """Versions, device, dtype, threads on a CPU, quantization and processes, as results record them."""
        device, dtype = self.network.device, str(self.network.dtype)
        values = {**versions(), "device": str(device), "dtype": dtype.removeprefix("torch.")}
        if device.type == "cpu":
            values["threads"] = str(self.threads)
        values |= {name: str(value) for name, value in self.weight_settings.items()}
        if self.network.weights_version:
            values["weights_version"] = str(self.network.weights_version)
        if self.network.processes > 1:
            values["processes"] = str(self.network.processes)
        graphs = getattr(self.network, "graphs", None) or runner(getattr(self.network, "decoder", None))
        if graphs is not None:
            values |= {"forwards": graphs.describe(), "graph_bytes": str(graphs.nbytes)}
        return values

    def exactness(self, sampler: Any) -> str:
        """The value of `Result.exact`: the sampler's promise, with the precision up to which it holds.

        In 16 bits logits often tie or nearly do, and a forward of several positions rounds differently from one of
        a single position.
        """
        precise = self.network.dtype in (torch.float32, torch.float64) or str(sampler.spec).startswith("sequential")
        exact = str(sampler.exact)
        return exact if precise or exact != "greedy" else f"greedy up to {str(self.network.dtype)[6:]} rounding"

    def result(self, call: Call, end: Finished, seconds: float, *, draw: bool = True) -> Result:
        """The result of a run that took `seconds`. Without `draw`, image tokens are not decoded to images."""
        layout = None if call.imaging is None else call.imaging.layout
        rows = [call.generated(row, canvas) for row, canvas in enumerate(end.tokens.tolist())]
        tokens, generated = [tokens for tokens, _ in rows], [count for _, count in rows]
        return Result(
            **self.driver.result(call, end, tokens, draw=draw),
            tokens=tokens,
            text=None if self._reader is None else [answer(self._reader, call, *row) for row in enumerate(tokens)],
            generated=generated,
            nfe=list(end.nfe),
            forward_rows=list(end.forward_rows),
            tokens_fed=list(end.tokens_fed),
            draft_forwards=list(end.draft_forwards or [0] * len(rows)),
            reused=list(end.reused or [0] * len(rows)),
            deviation=list(end.deviation or [None if call.sampler.exact == "relaxed" else 0.0] * len(rows)),
            padding=end.padding,
            spec=str(call.sampler.spec),
            exact=self.exactness(call.sampler),
            trace=end.trace,
            timing=Timing(seconds, sum(generated), dict(end.seconds)),
            finish=list(end.reasons),
            prompts=list(call.prompts),
            stop_ids=call.stop_ids,
            seeds=list(call.seeds),
            model=self.name,
            settings=call.settings,
            environment=self.environment(),
            tokenizer=self._reader,
            shown=call.shown,
            grid=None if layout is None else layout.grid,
            stride=None if layout is None else layout.stride,
        )


def stepping(events: Iterator[Event], threads: int | None) -> Iterator[Event]:
    """`events`, each computed with `threads` threads; the consumer keeps the previous number."""
    return events if threads is None else _stepping(events, threads)


def _stepping(events: Iterator[Event], threads: int) -> Iterator[Event]:
    while True:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            event = next(events)
        except StopIteration:
            return
        finally:
            torch.set_num_threads(before)
        yield event
