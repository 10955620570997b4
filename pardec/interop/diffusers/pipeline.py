"""diffusers' LLaDA2Pipeline with pardec's models, samplers and caches."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import torch
from diffusers import BlockRefinementScheduler, EntropyBoundScheduler, LLaDA2Pipeline
from diffusers.pipelines.llada2 import LLaDA2PipelineOutput
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.models.files.sources import read_json
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.spec import Policy, Spec

from ...api import Model, load
from ...requests.other_names import pretrained_arguments
from ...result import Result
from . import llada2, own_loop
from .arguments import accepts_pipeline_call, defaults
from .callbacks import TENSORS
from .chosen import lockstep
from .scheduler import PardecScheduler


class PardecPipeline(LLaDA2Pipeline):  # type: ignore[misc]
    """LLaDA2Pipeline with every model family, sampler and cache of pardec.

    Args:
        model: a pardec Model, or a name or folder for `pardec.load`; or any network that LLaDA2Pipeline accepts, called
            with input_ids, attention_mask and position_ids and returning an output with logits.
        scheduler: a PardecScheduler, or diffusers' BlockRefinementScheduler (the default) or EntropyBoundScheduler.
        tokenizer: replaces the model's own.

    >>> pipe = PardecPipeline.from_pretrained("tiny-dream", device="cpu")
    >>> out = pipe("Tom has 3 cups.", gen_length=8, block_length=8, sampler="threshold:tau=0.9@dual")
    >>> list(out.sequences.shape)
    [1, 8]
    """

    _callback_tensor_inputs: ClassVar[list[str]] = list(TENSORS)
    _optional_components: ClassVar[list[str]] = ["scheduler"]  # saved though it has a default

    def __init__(self, model: Any, scheduler: Any = None, tokenizer: Any = None) -> None:
        if isinstance(model, (str, os.PathLike)):
            model = load(Path(model) if isinstance(model, os.PathLike) else model)
        if not (isinstance(model, Model) or accepts_pipeline_call(model)):
            raise SpecError(
                "model is a pardec Model, a name or a folder, or is called with attention_mask and position_ids; "
                f"got {type(model).__name__}",
                hint='PardecPipeline.from_pretrained("name or folder") loads one',
            )
        if isinstance(model, Model) and model.family != "masked":
            raise SpecError(
                f"{model.name} is no masked text model, and PardecPipeline decodes those",
                hint="model.generate decodes it; pardec.ImagePipeline draws",
            )
        scheduler = BlockRefinementScheduler() if scheduler is None else scheduler
        if not isinstance(scheduler, (BlockRefinementScheduler, EntropyBoundScheduler)):
            raise SpecError(
                f"{type(scheduler).__name__} is not a scheduler for masked models",
                hint="pass a PardecScheduler, a BlockRefinementScheduler or an EntropyBoundScheduler",
            )
        if isinstance(model, Model) and tokenizer is None:
            tokenizer = model.tokenizer
        super().__init__(model=model, scheduler=scheduler, tokenizer=tokenizer)
        if isinstance(model, Model):
            decoding_config = model.language_model.decoding_config
            self.mask_token_id = decoding_config.mask_id
            own = getattr(tokenizer, "eos_token_id", None)
            self.eos_token_id = next(iter(decoding_config.eos_ids), None) if own is None else own
        self.result: Result | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> PardecPipeline:
        """Loads an embedded name, a folder or a hub id by `pardec.load`; also a folder of a saved pipeline.

        Args:
            kwargs: scheduler, tokenizer, and arguments of `pardec.load`; diffusers' names torch_dtype and
                local_files_only are accepted.
        """
        components: dict[str, Any] = {name: kwargs.pop(name) for name in ("scheduler", "tokenizer") if name in kwargs}
        kwargs.pop("low_cpu_mem_usage", None)  # pardec always does this
        if isinstance(device_map := kwargs.get("device_map"), str) and device_map != "auto" and "device" not in kwargs:
            kwargs["device"] = kwargs.pop("device_map")  # one device, as diffusers writes it
        name, components_of_folder = parts(pretrained_model_name_or_path)
        return cls(load(name, **pretrained_arguments(load, kwargs)), **{**components_of_folder, **components})

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as in diffusers; for a pardec model, copies the files that it was loaded from."""
        if not isinstance(self.model, Model):
            super().save_pretrained(save_directory, *args, **kwargs)
            if self.tokenizer is not None:  # diffusers does not save it
                self.tokenizer.save_pretrained(Path(save_directory) / "tokenizer")
            return
        if args or kwargs:
            raise SpecError(
                f"save_pretrained copies the files of a pardec model and takes no {', '.join(kwargs) or 'options'}",
                hint="pass the folder alone: pipe.save_pretrained(folder)",
            )
        save(self, Path(save_directory))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.language_model.device if isinstance(self.model, Model) else super().device
        return device

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = self.model.language_model.dtype if isinstance(self.model, Model) else super().dtype
        return kind

    def to(self, *args: Any, **kwargs: Any) -> PardecPipeline:
        """Moves a network; a pardec model gets its device and dtype when it is loaded, so others raise SpecError."""
        if not isinstance(self.model, Model):
            super().to(*args, **kwargs)
            return self
        kwargs.pop("silence_dtype_warnings", None)
        for wanted in (*args, *kwargs.values()):
            current = self.dtype if isinstance(wanted, torch.dtype) else self.device
            if isinstance(wanted, (str, int)):
                wanted = torch.device(wanted)
            matches = wanted in (None, current) or (
                isinstance(wanted, torch.device) and wanted.index is None and wanted.type == self.device.type
            )
            if not matches:
                raise SpecError(
                    f"{self.model.name} is on {self.device} in {self.dtype}, not {wanted}",
                    hint="set device and dtype when loading: PardecPipeline.from_pretrained(..., device=, dtype=)",
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
        sampler: str | Spec | Policy | MaskedSampler | None = None,
    ) -> Any:
        """Decodes as LLaDA2Pipeline's call does.

        For a network of the caller or a block-causal pardec model, a call without a sampler runs diffusers' own loop:
        the same tokens, draws and callbacks. As many forwards, too: diffusers continues after every row has ended if an
        end token was committed before the tokens that precede it, or is part of the prompt; a warning reports this.
        A pardec model never commits its mask token there, reads complete blocks from a cache, has its own block length,
        and also accepts lists of texts and of conversations.

        `sampler`, as in `Model.generate`, or the spec of a PardecScheduler, replaces num_inference_steps, threshold,
        editing_threshold, max_post_steps and minimal_topk, which must keep their defaults. It runs in pardec's loop, as
        do all calls of families that are not block-causal:

        - rows progress independently, may differ in length, and give the same alone and in a batch; `attention_mask`
          marks padding, which is removed.
        - a block may be edited after all its steps, and a row ends when nothing up to its end token is left to edit.
          Positions after gen_length are not part of the last block.
        - the blocks start at the prompt's end in families that are not block-causal, as in the authors' code;
          `block_length` is at most gen_length.
        - top-p is applied before top-k. Draws are keyed by row, with a seed from `generator`.
        - a callback cannot replace block_x.

        For a block-causal model, `sampler=policy(BlockRefinementScheduler(threshold=0.7), "edit:tau=0.5,post=17+eos")`
        is the default call in that loop. With a network of the caller, a sampler runs like a PardecScheduler, in
        diffusers' loop.

        Returns:
            LLaDA2PipelineOutput: `sequences` [B, gen_length] and `texts`, or the two as a tuple. After an early end
            are the tokens that diffusers leaves there, or in pardec's loop the padding id. The full pardec Result is in
            `pipe.result`; None for a network of the caller.
        """
        call = {name: value for name, value in locals().items() if name in defaults()}
        if input_ids is None and attention_mask is not None:
            raise SpecError("attention_mask needs input_ids", hint="leave it out for text")
        if isinstance(self.model, Model):
            decoding_config = self.model.language_model.decoding_config
            if mask_token_id not in (None, decoding_config.mask_id):
                raise SpecError(
                    f"mask_token_id={mask_token_id}, and {self.model.name} has mask token {decoding_config.mask_id}",
                    hint=f"load it with mask_id={mask_token_id}",
                )
        scheduler = lockstep(self.model, self.scheduler, sampler)
        if scheduler is None:
            sequences, texts, self.result = own_loop.run(self, call, sampler)
        else:
            sequences, texts, self.result = llada2.run(self, call, scheduler)
        return LLaDA2PipelineOutput(sequences=sequences, texts=texts) if return_dict else (sequences, texts)


_SCHEDULERS = {kind.__name__: kind for kind in (PardecScheduler, BlockRefinementScheduler, EntropyBoundScheduler)}


def parts(name: str | os.PathLike[str]) -> tuple[str | Path, dict[str, Any]]:
    """The argument for `pardec.load`, and the scheduler and tokenizer of the same folder.

    A name or folder without a model_index.json is returned as it is, without components.
    """
    folder = Path(name)
    index = folder / "model_index.json"
    if not index.is_file():
        return (folder if isinstance(name, os.PathLike) else name), {}
    if not (folder / "model").is_dir():
        raise ModelError(f"{folder} is a diffusers pipeline without a language model", "name the folder of the model")
    components: dict[str, Any] = {}
    match read_json(index).get("scheduler"):
        case [_, str(class_name)]:
            kind = _SCHEDULERS.get(class_name)
        case _:
            kind = None
    if kind is not None:
        components["scheduler"] = kind.from_pretrained(folder / "scheduler")
    if (folder / "tokenizer").is_dir():
        from transformers import AutoTokenizer

        components["tokenizer"] = AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    return folder / "model", components


def save(pipeline: Any, folder: Path) -> None:
    """Writes what `parts` reads: the files that the pardec model was loaded from, the scheduler and the tokenizer.

    Other arguments of `pardec.load` are not saved and must be passed again. Raises SpecError if the model's files no
    longer exist, or `folder` is inside their folder.
    """
    model, source = pipeline.model, pipeline.model.language_model.path
    if source is None or not source.is_dir():
        raise SpecError(f"the files of {model.name} do not exist and cannot be saved", hint="load it from a folder")
    if (folder / "model").resolve().is_relative_to(source.resolve()):
        raise SpecError(f"{folder} lies in the folder that {model.name} was loaded from", hint="name another folder")
    shutil.copytree(source, folder / "model", dirs_exist_ok=True)
    index: dict[str, Any] = {"_class_name": "PardecPipeline", "_diffusers_version": diffusers.__version__}
    index |= {"model": ["pardec.api", "Model"]}
    for name, part in (("scheduler", pipeline.scheduler), ("tokenizer", pipeline.tokenizer)):
        if part is not None:
            part.save_pretrained(folder / name)
            index[name] = [type(part).__module__, type(part).__name__]
    if model.tokenizer is not None and not (folder / "model" / "tokenizer.json").exists():  # embedded model
        model.tokenizer.save_pretrained(folder / "model")
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
