"""`load` a model, then `generate`, `stream` or ask for `logits`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import torch
from torch import Tensor

from pardec.models import kernels as models_kernels
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.kernels.cpu.library import prepare
from pardec.models.load import load_any
from pardec.models.parallel.threads import stepping, suited, using
from pardec.models.plan import Plan
from pardec.models.printable import plain
from pardec.samplers import ops as samplers_kernels
from pardec.samplers.continuous import loop as continuous
from pardec.samplers.events import Event, Finished, RowFinished
from pardec.samplers.masked import loop as masked
from pardec.samplers.speculative import loop as verify
from pardec.samplers.speculative.contracts import SpeculativeSampler

from .environment import versions
from .requests import continuous as vector_requests
from .requests import empty_answer
from .requests import text as requests
from .requests.continuous import VectorCall
from .requests.images import drawn
from .requests.prompts import check_length
from .requests.settings import VECTORS, Arguments, Settings
from .requests.text import Call
from .result import Result, Timing, plain_row
from .serving.streaming import Texts

if TYPE_CHECKING:
    from pardec.models.images.contracts import Imaging
    from pardec.models.model import LanguageModel
    from pardec.samplers.cards import Family

    from .serving.batch import Serving
    from .serving.queue import Waiting


class OutOfMemory(PardecError, MemoryError):
    """The device has no room for the request."""


def load(
    name: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    offline: bool = False,
    mask_id: int | None = None,
    block: int | None = None,
    decoder: str | Path | None = None,
    text_encoder: str | None = None,
    quantize: str | None = None,
    tp: bool = False,
    cuda_graphs: bool = False,
) -> Model:
    """Loads a model.

    Args:
        name: an embedded model ("tiny-dream"), a local folder, or a hub id; an existing folder wins over a hub id.
        device: "auto" (cuda, then mps, then cpu) or a torch device.
        dtype: "auto" (the checkpoint's on a GPU, float32 on a CPU) or a torch dtype or its name.
        device_map: "auto" spreads the layers over all devices; in place of `device`.
        revision: branch, tag or commit on the hub.
        offline: use what is on the disk already.
        mask_id: the mask token, where the checkpoint's own files do not name it.
        block: the block length of a block-causal model, where they do not name it.
        decoder: of a model of pictures, its image tokenizer or autoencoder, a file or a folder, where none lies beside
            the weights.
        text_encoder: what reads its captions, a folder or a hub id.
        quantize: "int8", "int4" or "fp8" (a GPU that has it) keeps matrices in fewer bits, which changes what the model
            says; needs torchao (extra `quant`). `Model.network.describe()` names the matrices that stay as they are.
            With int4, dtype="auto" is bfloat16.
        tp: under torchrun, each process holds a share of every layer, for models beyond one GPU. All of them have to
            make the same calls, and all get the same tokens.
        cuda_graphs: on a CUDA device, record forwards of few queries whose shapes come again, and start all their
            kernels at once: small batches then do not wait for Python. Caches keep their memory between requests.
            Off unless asked for: it has been tested without a GPU only, on recordings of tensor operations.

    Raises:
        ModelError: unknown name, no family for its config, missing, surplus or misshapen tensors, a damaged file, or
            a kind of `quantize` that cannot be here.

    >>> load("tiny-dream", device="cpu").name
    'tiny-dream'
    """
    return Model(
        load_any(
            name,
            device=device,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            offline=offline,
            mask_id=mask_id,
            block=block,
            decoder=decoder,
            text_encoder=text_encoder,
            quantize=quantize,
            tp=tp,
            cuda_graphs=cuda_graphs,
        )
    )


class Model:
    """A loaded model. Holds no state of any request, so calls may be interleaved."""

    def __init__(self, network: LanguageModel | ContinuousModel) -> None:
        self.network = network
        if network.device.type == "cpu" and network.dtype == torch.float32:
            for package in (models_kernels, samplers_kernels):
                prepare(Path(package.__path__[0]))

    @property
    def language_model(self) -> LanguageModel:
        """The network of a model whose tokens are ids. Raises ModelError for one whose tokens are vectors."""
        if isinstance(self.network, ContinuousModel):
            raise ModelError(f"{self.name} draws vectors and is no language model", "model.network is what was loaded")
        return self.network

    @property
    def family(self) -> Family:
        """Whose samplers it takes: "masked", "ar", or "continuous" where tokens are vectors."""
        if isinstance(self.network, ContinuousModel):
            return "continuous"
        return "masked" if self.network.decoding_config.masked else "ar"

    @property
    def name(self) -> str:
        return self.network.name

    @property
    def quantized(self) -> str | None:
        """What its matrices are kept in ("int8", "int4", "fp8"); None where that is the dtype."""
        return None if isinstance(self.network, ContinuousModel) else self.network.quantized

    @property
    def imaging(self) -> Imaging | None:
        """The picture side of a model of pictures, None of one of text."""
        return self.network.imaging

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, or None."""
        return None if isinstance(self.network, ContinuousModel) else self.network.tokenizer

    @property
    def _reader(self) -> Any:
        """The tokenizer, where ids are text: those of a model of pictures are codes."""
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

    def generate(self, prompt: Any = None, **arguments: Unpack[Arguments]) -> Result:
        """Decodes one row or a batch and returns when all rows are done.

        Args:
            prompt: str, list of str, or chat messages (one conversation or a list of them).
            input_ids: in place of a prompt, LongTensor [B, P] or a list of 1-D tensors or lists of unequal length.
            sampler: a spec such as "threshold:tau=0.9@dual", a "preset:name", or None for the default.
            max_new_tokens: positions to fill after the prompt.
            block_length: None takes min(32, max_new_tokens); block-causal models have their own.
            min_new_tokens: positions after the prompt at which no end token is committed.
            temperature, top_k, top_p, min_p: shape the law tokens are drawn from; temperature 0 takes the likeliest,
                min_p leaves out what is less likely than min_p times the likeliest. Where tokens are vectors, which
                have no filters, the temperature scales the noise of each step of the head, and is 1 if not given.
            repetition_penalty: above 1 makes tokens less likely that stand in the row, the prompt's among them, as
                transformers does; a masked model's are those of the prompt and of all that is committed, wherever it
                stands, end tokens excepted.
            cfg: guidance, l_u + cfg * (l_c - l_u); None is off. Where tokens are vectors, the noise is guided so.
            cfg_interval: of pictures, guide the first cfg_interval + 2 tokens only.
            label: in place of a prompt, the class or classes that a model of pictures draws; where tokens are vectors,
                -1 is none.
            num_images: pictures of each prompt or label, one row each.
            num_return_sequences: of text, rows of each prompt, one after the other; they need a temperature.
            prompt_embeds: in place of a prompt, what the model's text encoder makes of captions, [B, n, D] or a list.
            negative_prompt: of captions that are guided, what guidance leads away from: one, or one a prompt.
            seed: one number (row i gets the seed derived from it and i), or a list with one a row.
            template: text with mask tokens, or ids with None, that stands after the prompt in place of
                max_new_tokens masks; one, or one a row.
            logits_processor: transformers' logits processors, run on the history of each token; AR models only.
            allowed: which tokens may stand where: a function (row, index) -> ids, texts of one token, or None for any;
                a list of such choices, one a position; a dict {index: choices}; or a list with one of these a row.
                Index 0 is the first position after the prompt. It holds in any order, and for every stage.
            stop: a text, or texts, that end a row: its text is cut before the one that is complete first, its tokens
                behind the one that completes it. What stands in the prompt does not count.
            stop_ids: end tokens; None takes the model's (none with a template), [] never stops.
            block_align: lay the block grid from the end of the "prompt", or "absolute" from position 0.
            source: recorded uniforms in place of a seed.
            callback: called with every event.

        Raises:
            SpecError: an argument that cannot work, before the first forward.
            OutOfMemory: the device has no room for it.

        >>> model = load("tiny-dream", device="cpu")
        >>> model.generate(["Tom has 3 cups.", "Ann has 8 cups."], max_new_tokens=4, stop_ids=[]).sequences.shape[0]
        2
        """
        call = self.prepare(prompt, **arguments)
        started = time.perf_counter()
        finished = None
        for event in self.run(call, steps=call.callback is not None):
            if isinstance(event, Finished):
                finished = event
        assert finished is not None, "a loop ends with Finished"
        result = self.result(call, finished, time.perf_counter() - started)
        empty_answer.warn(self, result, prompt, stacklevel=2)
        return result

    def stream(self, prompt: Any = None, **arguments: Unpack[Arguments]) -> Iterator[Event]:
        """Decodes like `generate`, with the same arguments, and yields every event as it happens.

        `Step.text` has, per live row, the piece of text that became certain, and `RowFinished.text` the rest of its
        row; a row's pieces make up its `Result.text`. Without a tokenizer both are None.
        Leave the loop at any time: what the request held is freed. Arguments are checked before the first event.

        >>> for event in load("tiny-dream", device="cpu").stream("Ann has 8 cups.", max_new_tokens=2, stop_ids=[]):
        ...     if isinstance(event, RowFinished):
        ...         print(event.reason, event.nfe <= 2)
        length True
        """
        return self.run(self.prepare(prompt, **arguments), text=True)

    def serve_batch(self, prompts: Iterable[Any], *, batch_size: int = 8, **arguments: Unpack[Arguments]) -> Serving:
        """Decodes prompts of any number, `batch_size` at a time: where a row is done, the next prompt takes its place.

        Args:
            prompts: read as places become free; each one text, a conversation, or a dict with prompt, messages,
                input_ids (one row), label or prompt_embeds, and where it is to have its own: seed (of the row, as in a
                list of seeds), max_new_tokens, stop, template, allowed.
            arguments: as `generate` takes them, for all prompts. Prompt i has the seed that row i of a batch has; with
                num_return_sequences=n its rows have those of rows n * i and on.

        Returns:
            An iterator of finished rows, in the order in which they finish, each with the `index` of its prompt, a
            `result` of one row and, of several to a prompt, its number `sample`. The tokens of a row are those that
            `generate` gives it alone. `waits` says why a batch drains before the next begins, where its rows cannot be
            replaced one by one.

        Raises:
            SpecError: an argument that cannot work; for one of a prompt, once the rows before it are done.

        >>> model = load("tiny-dream", device="cpu")
        >>> rows = model.serve_batch((f"Tom has {n} cups." for n in range(3)), batch_size=2, max_new_tokens=4)
        >>> sorted(row.index for row in rows)
        [0, 1, 2]
        """
        from .serving.queue import Prompts

        return self._serving(Prompts(self, prompts, arguments), batch_size, "serve fewer rows at once (batch_size)")

    def logits(self, input_ids: Tensor) -> Tensor:
        """What the checkpoint puts out: [B, L] int64 in, [B, L, V] float32 out, row i at input position i, no cache.

        Nothing is changed or looked at: what is not finite comes out as it is, where decoding raises ModelError.

        Raises ModelError for a model whose tokens are vectors: it has no vocabulary.
        """
        model = self.language_model
        if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.numel() == 0:
            shape = list(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
            raise SpecError(f"input_ids is a LongTensor [B, L], got {shape}", hint="one row of ids is ids[None]")
        check_length(model, [len(row) for row in input_ids])
        low, high = int(input_ids.min()), int(input_ids.max())
        if low < 0 or high >= model.vocab_size:
            raise SpecError(
                f"input_ids has id {low if low < 0 else high}, outside the vocabulary of {model.vocab_size}",
                hint=f"ids lie in 0..{model.vocab_size - 1}",
            )
        with _memory(f"logits of {list(input_ids.shape)} ids", "ask for fewer rows or shorter ones"):
            plan = Plan.full(input_ids.to(model.device, torch.int64), model.visible())
            return model.forward(plan, None).logits().float()

    # --- the three steps of generate, for those who want to stand between them ---

    def prepare(self, prompt: Any = None, **arguments: Unpack[Arguments]) -> Call | VectorCall:
        """Reads the prompt and checks every argument, without a forward."""
        if isinstance(self.network, ContinuousModel):
            return vector_requests.prepare(self.network, prompt, Settings.of(arguments, VECTORS))
        call = requests.prepare(self.network, prompt, Settings.of(arguments))
        if self.network.processes > 1 and any(part.name == "goodput" for part in call.sampler.spec.parts):
            raise SpecError(
                "goodput decides by the clock, and the processes that share a model have to decide alike",
                hint="leave it out, or let the drafts have a fixed length",
            )
        return call

    def run(self, call: Call | VectorCall, *, text: bool = False, steps: bool = True) -> Iterator[Event]:
        """Decodes; the one place that calls the loop. With `text`, and for a callback, events tell their text.

        Without `steps` there is no event a step, which spares making it.
        """
        texts = Texts(self._reader if text or call.callback is not None else None, call)
        size = f"{len(call.seeds)} rows of up to {max(call.lengths)} tokens"
        with _memory(size, "decode fewer prompts at once (--batch-size), or fewer tokens"):
            decoded = self._decode(call, steps=steps)
            with closing(cast("Generator[Event]", decoded)) as events:  # freed at once, however this ends
                for told in stepping(events, self._threads):
                    event = texts(told)
                    if call.callback is not None:
                        call.callback(event)
                    yield event

    def serve(self, calls: Iterable[Call | VectorCall], *, batch_size: int = 8) -> Serving:
        """Decodes as `serve_batch` does what is prepared already: calls of one row each, with one sampler."""
        from .serving.queue import Waiting

        rows = (Waiting(index, call, call.request) for index, call in enumerate(calls))
        return self._serving(rows, batch_size, "decode fewer prompts at once (--batch-size), or fewer tokens")

    def _serving(self, rows: Iterator[Waiting], batch_size: int, hint: str) -> Serving:
        from .serving.batch import Serving

        @contextmanager
        def guard() -> Iterator[None]:
            with _memory(f"a batch of {batch_size} rows", hint), using(self._threads):
                yield

        return Serving(self, rows, batch_size, guard)

    @property
    def _threads(self) -> int | None:
        return suited(self.network.device, self.network.parameters)

    @property
    def threads(self) -> int:
        """How many threads of a CPU decode."""
        return self._threads or torch.get_num_threads()

    def text(self, tokens: list[int]) -> str | None:
        """Ids as text, special tokens left out; None without a tokenizer, and of a model of pictures."""
        return None if self._reader is None else str(self._reader.decode(tokens, skip_special_tokens=True))

    def _text(self, call: Call | VectorCall, row: int, tokens: list[int]) -> str | None:
        """The text of a row that has ended, cut before its stop string."""
        text, stops = self.text(tokens), call.stops(row)
        return text if text is None or stops is None else stops.cut(text)

    def row(self, call: Call | VectorCall, end: RowFinished) -> dict[str, Any]:
        """A row that has just finished, as plain values."""
        tokens, generated = call.generated(end.row, end.tokens.tolist())
        return plain_row(
            text=self._text(call, end.row, tokens),
            tokens=tokens,
            finish=end.reason,
            nfe=end.nfe,
            generated=generated,
            seed=call.seeds[end.row],
        )

    def environment(self) -> dict[str, str]:
        """Versions, device, dtype and a CPU's threads, as results record them; what matrices are kept in, if other."""
        device, dtype = self.network.device, str(self.network.dtype)
        found = {**versions(), "device": str(device), "dtype": dtype.removeprefix("torch.")}
        if device.type == "cpu":
            found["threads"] = str(self.threads)
        if self.quantized is not None:
            found["quantize"] = self.quantized
        if not isinstance(self.network, ContinuousModel) and self.network.processes > 1:
            found["processes"] = str(self.network.processes)
        return found

    def result(self, call: Call | VectorCall, end: Finished, seconds: float, *, draw: bool = True) -> Result:
        """What a run came to; `seconds` is its length. Without `draw`, codes or vectors are not decoded to pictures."""
        imaging = self.imaging
        made = [call.generated(row, canvas) for row, canvas in enumerate(end.tokens.tolist())]
        tokens, generated = [tokens for tokens, _ in made], [count for _, count in made]
        sequences, latents = torch.as_tensor(end.tokens), None
        if end.latents is not None:
            assert imaging is not None, "vectors are those of pictures"
            latents = torch.from_numpy(end.latents).reshape(len(made), *imaging.layout.grid, -1)
            sequences = sequences[:, :0]  # vectors have no ids
        images = None
        if imaging is not None and draw:
            codes = latents if latents is not None else [imaging.layout.codes(torch.tensor(row)) for row in tokens]
            images = drawn(imaging, codes)
        return Result(
            sequences=sequences,
            latents=latents,
            tokens=tokens,
            text=None if self._reader is None else [str(self._text(call, *row)) for row in enumerate(tokens)],
            generated=generated,
            nfe=list(end.nfe),
            forward_rows=list(end.forward_rows),
            tokens_fed=list(end.tokens_fed),
            draft_forwards=list(end.draft_forwards or [0] * len(made)),
            deviation=list(end.deviation or [None if call.sampler.exact == "relaxed" else 0.0] * len(made)),
            padding=end.padding,
            spec=str(call.sampler.spec),
            exact=call.sampler.exact,
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
            images=images,
            shown=call.shown,
            grid=None if imaging is None else imaging.layout.grid,
            stride=None if imaging is None else imaging.layout.stride,
        )

    def _decode(self, call: Call | VectorCall, *, steps: bool) -> Iterator[Event]:
        """The loop of the sampler's family."""
        if isinstance(call, VectorCall):
            assert isinstance(self.network, ContinuousModel), "prepared for such a model"
            return continuous.decode(self.network, call.sampler, call.request, steps=steps)
        if isinstance(call.sampler, SpeculativeSampler):
            return verify.decode(self.language_model, call.sampler, call.request, steps=steps)
        return masked.decode(self.language_model, call.sampler, call.request, steps=steps)


setattr(Model.generate, "__signature__", Settings.signature())  # noqa: B010
setattr(Model.stream, "__signature__", Settings.signature())  # noqa: B010


@contextmanager
def _memory(what: str, hint: str) -> Iterator[None]:
    """Says in one line that memory ran out, and what would help."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
