"""`load` a model, then `generate`, `stream` or ask for `logits`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor

from pardec.models.caches.prefix_cache import PrefixCache
from pardec.models.errors import SpecError
from pardec.models.load import load_any
from pardec.models.loading.update import load_weights
from pardec.models.parallel.threads import using
from pardec.models.plan import Plan
from pardec.samplers.events import Event, Finished

from .choice import Choice, choose, form_of, prompts_of
from .engine import Engine
from .likelihood import Deviation, deviation
from .memory import OutOfMemory, memory_errors
from .requests import answer_warnings
from .requests.call import Call
from .requests.other_names import known_arguments
from .requests.prompts import check_length
from .requests.settings import AnyNames, documented, ignored_arguments, own_names
from .result import Result
from .rollouts import REWARD, Reward, Rollouts, rewarded
from .serving.batch import Serving
from .serving.queue import Prompts
from .serving.rows import QueuedRow

if TYPE_CHECKING:
    from .check import Check

__all__ = ["Model", "OutOfMemory", "load"]


@known_arguments
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
    shift: int | None = None,
    attention: str | None = None,
    decoder: str | Path | None = None,
    text_encoder: str | None = None,
    quantize: str | None = None,
    packed: bool | None = None,
    activations: str | None = None,
    tp: bool = False,
    cuda_graphs: bool | Literal["auto"] = "auto",
    adapter: str | Path | None = None,
    images: bool = True,
) -> Model:
    """Loads a model.

    Args:
        name: an embedded model ("tiny-dream"), a local folder, or a hub id; an existing folder wins over a hub id.
        device: "auto" (cuda, then mps, then cpu) or a torch device.
        dtype: "auto" (the checkpoint's on a GPU, float32 on a CPU) or a torch dtype or its name.
        device_map: "auto" spreads the layers over all devices; in place of `device`.
        revision: branch, tag or commit on the hub.
        offline: use only files that are already on the disk.
        mask_id: the mask token, where the checkpoint's own files do not name it.
        block: the block length of a block-causal model, where they do not name it.
        shift: offset of the output that predicts a token: 0 (LLaDA) or 1 (AR, Dream); overrides the family's.
        attention: "bidirectional", "block-causal", "windowed-causal", "causal-prefix" or "causal"; overrides
            the family's: a Nemotron with "causal" is autoregressive.
        decoder: for image models, the image tokenizer or autoencoder, a file or a folder, if the folder of
            the weights has none.
        text_encoder: the encoder of an image model's captions, a folder or a hub id.
        quantize: "int8", "int4" or "fp8" (on GPUs that support it) quantizes the matrices, which changes the
            output. On a CPU they become blocks of 32 weights, which pardec's own kernel multiplies; a GPU, or a CPU
            without a C compiler, needs torchao (extra `quant`), where int4 makes dtype="auto" bfloat16.
            `Model.network.describe()` names the matrices that are not quantized.
        packed: True keeps the block-quantized matrices of a GGUF file packed, in the file's own bytes, on a CPU; False
            dequantizes them to `dtype`. By default they stay packed where there is a kernel for them and `dtype` is
            "auto".
        activations: what packed matrices, and those that are quantized on a CPU, multiply. "float32" (the default)
            gives the dequantized model's outputs, to float32 rounding; "int8" rounds states to 8 bits in groups of 32,
            as llama.cpp does, which is faster and changes the output of a matmul by about 0.5%.
        tp: under torchrun, each process holds a share of every layer, for models beyond one GPU. All of them have to
            make the same calls, and all get the same tokens.
        cuda_graphs: on a CUDA device, capture forwards of few queries whose shapes recur as CUDA graphs, so that small
            batches do not wait for Python. KV caches keep their memory between requests. "auto" does so for native
            models on one such device that are not quantized; True refuses what cannot be captured, and False
            runs every forward as it comes. `Result.environment["forwards"]` says how they ran.
        adapter: a LoRA adapter in PEFT's layout, a folder or a hub id, merged into the weights before anything else is
            done with them. The model is then called "name+adapter", and so it is in results.
        images: False loads a model that both draws and writes (Lumina-DiMOO, MMaDA) for its text: prompts are then
            text to continue, in place of captions. Nothing changes for other models.

    Raises:
        ModelError: unknown name, no family for its config, missing, surplus or misshapen tensors, a damaged file,
            an adapter that cannot be merged, or a kind of `quantize` that this machine does not support.

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
            shift=shift,
            attention=attention,
            decoder=decoder,
            text_encoder=text_encoder,
            quantize=quantize,
            packed=packed,
            activations=activations,
            tp=tp,
            cuda_graphs=cuda_graphs,
            adapter=adapter,
            images=images,
        )
    )


class Model(Engine):
    """A loaded model. Holds no state of any request, so calls may be interleaved."""

    def generate(self, prompt: Any = None, **arguments: Unpack[AnyNames]) -> Result:
        """Decodes one row or a batch and returns when all rows are done.

        Args:
            prompt: str, list of str, or chat messages (one conversation or a list of them).
            {arguments}

        Names of other libraries are taken where they mean the same: max_tokens, n, do_sample, eos_token_id,
        stop_strings, stop_sequences, min_tokens.

        Raises:
            SpecError: an argument that cannot work, before the first forward.
            OutOfMemory: the device has no room for it.

        >>> model = load("tiny-dream", device="cpu")
        >>> model.generate(["Tom has 3 cups.", "Ann has 8 cups."], max_new_tokens=4, stop_ids=[]).sequences.shape[0]
        2
        """
        arguments = own_names(arguments)
        call = self.prepare(prompt, **arguments)
        if (ignored := ignored_arguments(arguments, call.settings)) is not None:
            warnings.warn(ignored, stacklevel=2)
        start = time.perf_counter()
        finished = None
        for event in self.run(call, steps=call.callback is not None):
            if isinstance(event, Finished):
                finished = event
        assert finished is not None, "a loop ends with Finished"
        result = self.result(call, finished, time.perf_counter() - start)
        answer_warnings.warn_of_empty(self, result, prompt, stacklevel=2)
        answer_warnings.warn_of_slow_drafts(result, finished.rounds_s, stacklevel=2)
        return result

    def stream(self, prompt: Any = None, **arguments: Unpack[AnyNames]) -> Iterator[Event]:
        """Decodes like `generate`, with the same arguments, and yields every event as it happens.

        `Step.text` has, per live row, the text that became final with the step, and `RowFinished.text` the rest of its
        row; a row's texts concatenated are its `Result.text`. Without a tokenizer both are None.
        Leave the loop at any time: the request's memory is freed. Arguments are checked before the first event.

        Args:
            prompt: as in `generate`.
            {arguments}

        >>> from pardec import RowFinished
        >>> for event in load("tiny-dream", device="cpu").stream("Ann has 8 cups.", max_new_tokens=2, stop_ids=[]):
        ...     if isinstance(event, RowFinished):
        ...         print(event.reason, event.nfe <= 2)
        length True
        """
        return self.run(self.prepare(prompt, **arguments), text=True)

    def serve_batch(self, prompts: Iterable[Any], *, batch_size: int = 8, **arguments: Unpack[AnyNames]) -> Serving:
        """Decodes any number of prompts, `batch_size` at a time: a finished row frees its slot for the next prompt.

        Args:
            prompts: read as slots become free; each a text, a conversation, or a dict with prompt, messages, input_ids
                (one row), label or prompt_embeds, and optionally its own seed (of the row, as in a list of seeds),
                max_new_tokens, stop, template, allowed, response_format.
            arguments: as `generate` takes them, for all prompts. Prompt i has the seed of row i of a batch; with
                num_return_sequences=n its rows have the seeds of rows n * i and on.

        Returns:
            An iterator of finished rows, in the order in which they finish, each with the `index` of its prompt, a
            `result` of one row and, where a prompt has several, its index `sample`. The tokens of a row are those that
            `generate` gives it alone. `waits` says why a batch drains before the next begins, where its rows cannot be
            replaced one by one.

        Raises:
            SpecError: an invalid argument; if it belongs to one prompt, once the rows before it are finished.
            Exception: a row failed while it was decoded; raised once all other rows, unaffected, are finished.
                `failed` has the errors of such rows by the index of their prompt.

        >>> model = load("tiny-dream", device="cpu")
        >>> rows = model.serve_batch((f"Tom has {n} cups." for n in range(3)), batch_size=2, max_new_tokens=4)
        >>> sorted(row.index for row in rows)
        [0, 1, 2]
        """
        queue = Prompts(self, prompts, own_names(arguments))
        return self._serving(queue, batch_size, "serve fewer rows at once (batch_size)")

    def choose(
        self,
        prompt: Any = None,
        *,
        slots: Mapping[str, Sequence[str]],
        answer: str | None = None,
        input_ids: Any = None,
    ) -> list[Choice]:
        """Classifies prompts: the probabilities of given labels in the slots of an answer.

        A masked model reads all of them from one forward, with every slot masked and as many masks in a slot as the
        label has tokens; labels of several lengths are rows of the same batch. An autoregressive model gives each
        label its exact likelihood, earlier slots holding their likeliest labels.

        Args:
            prompt: as in `generate`; a text is passed unchanged, messages go through the chat template.
            slots: the labels of each slot, at least two, of one or several tokens each.
            answer: the text of the answer with each slot once, as "Mood: {mood}". By default a single slot alone, or a
                line "name: {name}" per slot. A space before a slot belongs to its labels.
            input_ids: in place of a prompt.

        Returns:
            A choice per prompt, with `best`, `probabilities` and `log_likelihoods` by slot and label.

        Raises:
            SpecError: slots, labels or an answer that cannot work, or rows longer than the context.

        >>> model = load("tiny-dream", device="cpu")
        >>> [choice] = model.choose("Tom has 3 cups.", slots={"sign": ["+", "-"]}, answer=" 3 {sign}")
        >>> round(sum(choice.probabilities["sign"].values()), 6)
        1.0
        """
        network = self.language_model
        form = form_of(network, slots, answer)
        prompts = prompts_of(network, prompt, input_ids)
        with memory_errors(f"a choice for {len(prompts)} prompts", "pass fewer prompts"), using(self.set_threads):
            return choose(network, prompts, form)

    def rollouts(self, prompt: Any = None, *, n: int = 8, reward: Reward | None = None, **arguments: Any) -> Rollouts:
        """Samples `n` answers to each prompt, with step maps and log-probabilities, for training elsewhere.

        Args:
            prompt: as in `generate`.
            n: answers per prompt; each has a seed of its own.
            reward: called with the texts of a prompt and an answer for each row; returns a number.
            arguments: as `generate` takes them; temperature is 1 and logprobs 0 unless they say otherwise.

        Returns:
            The rows and their rewards; `to_dllm_rl()` and `to_verl()` lay them out for trainers.

        Raises:
            SpecError: an argument that cannot work, a model without texts, or a reward that is not a finite number.

        >>> model = load("tiny-dream", device="cpu")
        >>> rollouts = model.rollouts("Tom has 3 cups.", n=2, max_new_tokens=4, reward=lambda prompt, text: len(text))
        >>> rollouts.to_verl()["responses"].shape[0], len(rollouts.rewards)
        (2, 2)
        """
        if self._reader is None:
            raise SpecError(f"{self.name} does not write text", hint="model.generate samples images with seeds=[...]")
        named = own_names(arguments)
        if "num_return_sequences" in named:
            raise SpecError("rollouts takes no num_return_sequences", hint="pass n=")
        if reward is not None and not callable(reward):
            raise SpecError(f"reward cannot be called, got {type(reward).__name__}", hint=REWARD)
        settings: dict[str, Any] = {"temperature": 1.0, "logprobs": 0, **named, "num_return_sequences": n}
        if settings["logprobs"] is None:
            raise SpecError("rollouts always record log-probabilities, got logprobs=None", hint="leave logprobs out")
        return rewarded(self.generate(prompt, **settings), n, reward)

    def cache_prefixes(self, mib: float) -> PrefixCache | None:
        """Keeps K/V of prompts and answers for later requests that begin with the same tokens; 0 turns it off.

        A request then computes only what follows its longest stored prefix, of `Result.reused` tokens. Its tokens are
        those that it has without, up to rounding. Exact for models with causal attention, or causal over blocks; image
        models, and drafters that read logits of the whole prompt (recycling:prefill=true), do not take part, nor does
        guidance. It is not thread-safe, like decoding itself.

        Args:
            mib: the most memory that the stored blocks take, in MiB, on the devices of the layers. A call starts
                with an empty cache.

        Returns:
            The cache, with its statistics (`blocks`, `nbytes`, `hits`, `misses`, `tokens`, `evictions`), which is also
            `model.prefix_cache`; None for 0.

        Raises:
            SpecError: the budget is not a number of at least 0, or K/V of a prefix depend on more than its tokens, as
                in bidirectional models.

        >>> model = load("tiny-llama", device="cpu")
        >>> cache = model.cache_prefixes(64)
        >>> [model.generate("Tom has 3 cups, and Ann 8." * 2, max_new_tokens=2).reused[0] > 0 for _ in range(2)]
        [False, True]
        """
        if isinstance(mib, bool) or not isinstance(mib, int | float) or not 0 <= mib < float("inf"):
            raise SpecError(
                f"mib must be a number of at least 0, got {mib!r}", hint="cache_prefixes(256) keeps up to 256 MiB"
            )
        return self.language_model.cache_prefixes(int(mib * 2**20))

    def load_weights(self, weights: Mapping[str, Tensor] | str | Path) -> None:
        """Replaces all weights in place, as training does with a rollout engine after each of its steps.

        Every parameter keeps its memory, dtype and device, and `network.weights_version` rises by one. Quantized layers
        are quantized again, tied embeddings stay tied, and derived values are updated. A request under way
        raises ModelError at its next step, and so does a batch that is being served: finish or close them before.
        Where processes share a model (tp), all of them have to make this call.

        Args:
            weights: a state dict with the checkpoint's own names, such as a trainer's `state_dict()`; a
                prefix that DistributedDataParallel, torch.compile or PEFT put before all names is removed. Or a folder
                or a weights file in the published layout.

        Raises:
            ModelError: missing, surplus or misshapen tensors, an adapter that is not merged, a folder of another model,
                or a model with offloaded parts. Then nothing has been changed.

        >>> model = load("tiny-dream", device="cpu")
        >>> model.load_weights(model.path)
        >>> model.network.weights_version
        1
        """
        with memory_errors(f"new weights of {self.name}", "pass a state dict on the CPU"):
            load_weights(self.driver.network, weights)

    def check(
        self,
        sampler: Any,
        prompts: Sequence[Any] | None = None,
        *,
        expected: float | None = None,
        samples: int | None = None,
        pairs: int = 3,
        **arguments: Any,
    ) -> Check:
        """Decodes with and without a drafter or cache, and says whether the output is what the sampler promises.

        At temperature 0 the tokens of both are compared, and each row that parts from the reference gets a cause: a
        tie, rounding, a fault, or a sampler that is not exact. Above it, both samples are compared by a test.
        `str` of the result is the report that `pardec check` prints.

        Args:
            sampler: the spec to check.
            prompts: a list of what `generate` takes, or of tensors of ids; by default a few questions.
            expected: the drafter's published tokens per round; by default those of its card, if it has one.
            samples: rows per prompt where tokens are sampled; None is 64.
            pairs: how often both are timed, in turn.
            arguments: as `generate` takes them.

        Raises:
            SpecError: an argument that cannot work, or a model of vectors or token maps.

        >>> found = load("tiny-llama", device="cpu").check("lookup", ["list 3 5"], max_new_tokens=8, pairs=1)
        >>> found.equal, found.faults
        (1, [])
        """
        from .check import check

        return check(self, sampler, prompts, expected=expected, samples=samples, pairs=pairs, **own_names(arguments))

    def logits(self, input_ids: Tensor) -> Tensor:
        """The checkpoint's own logits: [B, L] int64 in, [B, L, V] float32 out, row i at input position i, no cache.

        They are not checked: values that are not finite are returned, where decoding would raise ModelError.

        Raises ModelError for a model of continuous tokens or token maps, which predicts no next token.
        """
        model = self.language_model
        if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.numel() == 0:
            shape = list(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
            raise SpecError(
                f"input_ids must be a LongTensor [B, L], got {shape}", hint="for one row of ids pass ids[None]"
            )
        check_length(model, [len(row) for row in input_ids])
        low, high = int(input_ids.min()), int(input_ids.max())
        if low < 0 or high >= model.vocab_size:
            raise SpecError(
                f"input_ids has id {low if low < 0 else high}, outside the vocabulary of {model.vocab_size}",
                hint=f"ids lie in 0..{model.vocab_size - 1}",
            )
        with memory_errors(f"logits of {list(input_ids.shape)} ids", "pass fewer or shorter rows"):
            ids = input_ids.to(model.device, torch.int64)
            plan = Plan.full(ids, model.visible(model.masks(ids)))
            return model.forward(plan, None).logits().float()

    def deviation(self, result: Result) -> Deviation:
        """Compares an autoregressive `result` with the model's own predictions: see `Deviation`.

        It measures what a lossy cache, or a relaxed acceptance, has cost, in one forward over each row.
        Raises SpecError for other results.
        """
        return deviation(self.language_model, result)

    def serve(self, calls: Iterable[Call], *, batch_size: int = 8) -> Serving:
        """`serve_batch` for prepared calls; each has one row, and all have the same sampler."""
        rows = (QueuedRow(index, call, call.request) for index, call in enumerate(calls))
        return self._serving(rows, batch_size, "decode fewer prompts at once (--batch-size), or fewer tokens")

    def _serving(self, rows: Iterator[QueuedRow], batch_size: int, hint: str) -> Serving:
        @contextmanager
        def guard() -> Iterator[None]:
            with memory_errors(f"a batch of {batch_size} rows", hint), using(self.set_threads):
                yield

        return Serving(self, rows, batch_size, guard)


documented(Model.generate)
documented(Model.stream)
