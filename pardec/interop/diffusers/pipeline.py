"""pardec's loop behind the arguments of diffusers' LLaDA2Pipeline."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import BlockRefinementScheduler, DiffusionPipeline, EntropyBoundScheduler
from diffusers.pipelines.llada2 import LLaDA2PipelineOutput
from torch import Tensor

from pardec.api import Model, load
from pardec.interop.diffusers.arguments import draw_seeds, shaping
from pardec.interop.diffusers.callbacks import TENSORS, Told
from pardec.interop.diffusers.chosen import asked_for, ending
from pardec.interop.diffusers.folders import parts
from pardec.interop.diffusers.prompts import encoded, unpadded
from pardec.interop.diffusers.scheduler import PardecScheduler
from pardec.models.errors import SpecError
from pardec.requests import BLOCK
from pardec.result import Result
from pardec.samplers.contracts import Sampler
from pardec.samplers.events import Finished, Step
from pardec.samplers.spec import Policy, Spec


class PardecPipeline(DiffusionPipeline):  # type: ignore[misc]
    """Text generation with every model family, sampler and cache of pardec, called like diffusers' LLaDA2Pipeline.

    Args:
        model: a pardec Model, or a name or folder for `pardec.load`.
        scheduler: a PardecScheduler, or diffusers' BlockRefinementScheduler (the default) or EntropyBoundScheduler.
        tokenizer: in place of the model's own.

    >>> pipe = PardecPipeline.from_pretrained("tiny-dream", device="cpu")
    >>> out = pipe("Tom has 3 cups.", gen_length=8, block_length=8, sampler="threshold:tau=0.9@dual")
    >>> list(out.sequences.shape)
    [1, 8]
    """

    _callback_tensor_inputs: ClassVar[list[str]] = list(TENSORS)

    def __init__(self, model: Any, scheduler: Any = None, tokenizer: Any = None) -> None:
        super().__init__()
        if isinstance(model, (str, os.PathLike)):
            model = load(Path(model) if isinstance(model, os.PathLike) else model)
        if not isinstance(model, Model):
            known = getattr(model, "name_or_path", None) or "name or folder"
            raise SpecError(
                f"model is a pardec Model, a name or a folder, got {type(model).__name__}",
                hint=f"pardec has its own layers: PardecPipeline.from_pretrained({known!r})",
            )
        scheduler = BlockRefinementScheduler() if scheduler is None else scheduler
        if not isinstance(scheduler, (PardecScheduler, BlockRefinementScheduler, EntropyBoundScheduler)):
            raise SpecError(
                f"{type(scheduler).__name__} is no scheduler that a masked model can be decoded with",
                hint="pass a PardecScheduler, a BlockRefinementScheduler or an EntropyBoundScheduler",
            )
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        self.register_modules(model=model, scheduler=scheduler, tokenizer=tokenizer)
        self.result: Result | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> PardecPipeline:
        """Loads an embedded name, a folder or a hub id by `pardec.load`; a folder of a saved pipeline will do too.

        Args:
            kwargs: scheduler and tokenizer, and what `pardec.load` takes; diffusers' names torch_dtype and
                local_files_only are understood.
        """
        own: dict[str, Any] = {name: kwargs.pop(name) for name in ("scheduler", "tokenizer") if name in kwargs}
        if kwargs.pop("trust_remote_code", False):
            raise SpecError("trust_remote_code=True, and pardec runs no remote code", hint="leave it out")
        for theirs, ours in (("torch_dtype", "dtype"), ("local_files_only", "offline")):
            if theirs in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        known = inspect.signature(load).parameters
        for argument in kwargs:
            if argument not in known:
                raise SpecError(f"from_pretrained takes no {argument!r}", hint=f"pardec.load takes {', '.join(known)}")
        name, beside = parts(pretrained_model_name_or_path)
        return cls(load(name, **kwargs), **{**beside, **own})

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Refused: the model's folder is what it was loaded from."""
        raise SpecError(
            f"a PardecPipeline is not saved; its model lies in {self.model.path}",
            hint="save the scheduler, pipe.scheduler.save_pretrained(folder)",
        )

    @property
    def device(self) -> torch.device:
        return self.model.language_model.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.language_model.dtype  # type: ignore[no-any-return]

    def to(self, *args: Any, **kwargs: Any) -> PardecPipeline:
        """Itself where it is there already; a pardec model is placed when it is loaded."""
        kwargs.pop("silence_dtype_warnings", None)
        for wanted in (*args, *kwargs.values()):
            there = self.dtype if isinstance(wanted, torch.dtype) else self.device
            if isinstance(wanted, (str, int)):
                wanted = torch.device(wanted)
            same = wanted in (None, there) or (
                isinstance(wanted, torch.device) and wanted.index is None and wanted.type == self.device.type
            )
            if not same:
                raise SpecError(
                    f"{self.model.name} is on {self.device} in {self.dtype}, asked for {wanted}",
                    hint="a model is placed when it is loaded: PardecPipeline.from_pretrained(..., device=, dtype=)",
                )
        return self

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        messages: list[dict[str, str]] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_chat_template: bool = True,
        add_generation_prompt: bool = True,
        gen_length: int = 2048,
        block_length: int | None = None,
        num_inference_steps: int = 32,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        sampling_method: str = "multinomial",
        threshold: float = 0.7,
        editing_threshold: float | None = 0.5,
        max_post_steps: int = 16,
        minimal_topk: int = 1,
        eos_early_stop: bool = True,
        eos_token_id: int | None = None,
        mask_token_id: int | None = None,
        generator: torch.Generator | None = None,
        output_type: str = "text",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: list[str] | None = None,
        *,
        sampler: str | Spec | Policy | Sampler | None = None,
    ) -> Any:
        """Decodes as LLaDA2Pipeline's call does, with these differences.

        - `sampler`, as in `Model.generate`, or a PardecScheduler's spec, takes the place of num_inference_steps,
          threshold, editing_threshold, max_post_steps and minimal_topk; then these stay at their defaults.
        - `prompt` may be a list with a chat template too. Rows may differ in length; `attention_mask` marks padding.
        - the block grid begins at the prompt's end in families that are not block-causal, as their authors lay it;
          `block_length` is at most gen_length.
        - top-p is taken before top-k. Draws are keyed by row, with a seed from `generator`.
        - a callback cannot replace block_x.

        Returns:
            LLaDA2PipelineOutput: `sequences` [B, gen_length], behind an early end the padding id, and `texts`, or the
            two as a tuple. The whole pardec Result is in `pipe.result`.
        """
        if output_type not in ("seq", "text"):
            raise SpecError(f'output_type is "seq" or "text", got {output_type!r}')
        facts = self.model.language_model.facts
        if mask_token_id not in (None, facts.mask_id):
            raise SpecError(
                f"mask_token_id={mask_token_id}, and the mask token of {self.model.name} is {facts.mask_id}",
                hint=f"load it with mask_id={mask_token_id}",
            )
        asked: dict[str, Any] = {
            "num_inference_steps": num_inference_steps,
            "threshold": threshold,
            "minimal_topk": minimal_topk,
        }
        asked |= {"editing_threshold": editing_threshold, "max_post_steps": max_post_steps, "gen_length": gen_length}
        chosen = ending(asked_for(self.scheduler, sampler, asked), eos_early_stop)
        told = Told(self, callback_on_step_end, callback_on_step_end_tensor_inputs)
        if input_ids is not None:
            rows = unpadded(input_ids, attention_mask)
        elif attention_mask is not None:
            raise SpecError("attention_mask goes with input_ids", hint="leave it out; text is not padded here")
        else:
            rows = encoded(self.tokenizer, prompt, messages, use_chat_template, add_generation_prompt)
        call = self.model.prepare(
            input_ids=rows,
            sampler=told.watched(chosen),
            max_new_tokens=gen_length,
            block_length=self._block_length(block_length, gen_length),
            stop_ids=eos_token_id,
            seed=draw_seeds(generator, 1)[0] if temperature or generator is not None else 0,
            **shaping(temperature, top_k, top_p, sampling_method),
        )
        started = time.perf_counter()
        with self.progress_bar(total=gen_length * len(rows)) as bar:
            for event in self.model.run(call):
                told.tell(event)
                if isinstance(event, Step):
                    bar.update(int(event.committed.sum()))
        assert isinstance(event, Finished), "a loop ends with Finished"
        self.result = self.model.result(call, event, time.perf_counter() - started)
        made = [row[start:][:gen_length] for row, start in zip(self.result.sequences, self.result.prompts, strict=True)]
        sequences = torch.stack(made).to(self.device)
        texts = None
        if output_type == "text" and self.tokenizer is not None:
            texts = self.tokenizer.batch_decode(self.result.tokens, skip_special_tokens=True)
        return LLaDA2PipelineOutput(sequences=sequences, texts=texts) if return_dict else (sequences, texts)

    def _block_length(self, asked: int | None, gen_length: int) -> int | None:
        """None leaves it to a block-causal model where the call names none."""
        if asked is None and self.model.language_model.facts.attention == "block-causal":
            return None
        block = getattr(self.scheduler.config, "block_length", BLOCK) if asked is None else asked
        if self.model.language_model.facts.attention == "block-causal":
            return int(block)
        return min(int(block), gen_length)
