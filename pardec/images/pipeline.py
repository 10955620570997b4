"""pardec's image models with the interface of diffusers' image pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.images.contracts import Imaging
from pardec.samplers.continuous.contracts import ContinuousSampler
from pardec.samplers.events import Finished, Step
from pardec.samplers.scales.contracts import ScaleSampler
from pardec.samplers.spec import Policy, Spec
from pardec.samplers.speculative.contracts import SpeculativeSampler

from ..api import Model, load
from ..requests.argument import check_whole, is_number
from ..requests.call import Call
from ..requests.images import enlarged, size_and_scale, with_defaults
from ..requests.other_names import pretrained_arguments
from ..result import Result
from ..views.unfinished import Codes, decodable, to_grid, unfinished

_TENSORS = ("latents", "committed")
_TYPES = ("pil", "np", "pt", "latent")


class ImagePipeline(DiffusionPipeline):  # type: ignore[misc]
    """Images of captions or classes, with every sampler of pardec.

    Args:
        model: a pardec Model, or a name, folder or file for `pardec.load`.

    The whole pardec Result of the latest call is in `pipe.result`; None where a callback interrupted it.

    pipe = pardec.ImagePipeline.from_pretrained("c2i_B_256.pt", decoder="vq_ds16_c2i.pt")
    pipe(class_labels=207, guidance_scale=4.0, generator=torch.Generator().manual_seed(0)).images[0].save("dog.png")
    """

    _callback_tensor_inputs: ClassVar[list[str]] = list(_TENSORS)

    def __init__(self, model: Any) -> None:
        super().__init__()
        loaded = load(_path(model)) if isinstance(model, (str, os.PathLike)) else model
        if not isinstance(loaded, Model):
            raise SpecError(
                f"model must be a pardec Model, a name or a folder, got {type(model).__name__}",
                hint="ImagePipeline(pardec.load(name))",
            )
        if loaded.imaging is None:
            raise SpecError(f"{loaded.name} is a text model and draws no images", hint="use its generate")
        self.register_modules(model=loaded)
        self.loading: tuple[Any, dict[str, Any]] | None = (model, {}) if loaded is not model else None
        self.result: Result | None = None
        self._interrupt = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> ImagePipeline:
        """Loads an embedded name, a folder, a file or a hub id with `pardec.load`, which documents `kwargs`.

        diffusers' names torch_dtype and local_files_only are accepted too.

        Raises:
            SpecError: another argument, or a text model. And what `pardec.load` raises.
        """
        path, arguments = _path(pretrained_model_name_or_path), pretrained_arguments(load, kwargs)
        pipe = cls(load(path, **arguments))
        pipe.loading = (path, arguments)
        return pipe

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Always raises SpecError: the files that the model was loaded from are the saved model."""
        raise SpecError(f"an ImagePipeline is not saved; its model is in {self.model.path}", hint="copy those files")

    @property
    def device(self) -> torch.device:
        return self.model.network.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.network.dtype  # type: ignore[no-any-return]

    @property
    def imaging(self) -> Imaging:
        """The image tokenizer and layout of the model."""
        return self.model.imaging  # type: ignore[no-any-return]

    @property
    def interrupt(self) -> bool:
        """Whether a callback stopped the decoding."""
        return self._interrupt

    def to(self, *args: Any, **kwargs: Any) -> ImagePipeline:
        """Moves the pipeline to another device or dtype by loading its weights again, and returns it.

        Raises:
            SpecError: the pipeline was created from a loaded Model and cannot load it again.
        """
        kwargs.pop("silence_dtype_warnings", None)
        changes: dict[str, Any] = {}
        for target in (*args, *kwargs.values()):
            if isinstance(target, torch.dtype):
                changes |= {"dtype": target} if target != self.dtype else {}
            elif target is not None:
                device = torch.device(target)
                same = device.type == self.device.type and device.index in (None, self.device.index)
                changes |= {} if same else {"device": device}
        if not changes:
            return self
        if self.loading is None:
            raise SpecError(
                f"{self.model.name} is on {self.device} in {self.dtype}, loaded before the pipeline was created",
                hint='ImagePipeline.from_pretrained(name, device="cuda") loads it there and can move it later',
            )
        name, arguments = self.loading
        self.loading = (name, {"device": self.device, "dtype": self.dtype, **arguments, **changes})
        self.register_modules(model=load(name, **self.loading[1]))
        return self

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        *,
        class_labels: int | list[int] | Tensor | None = None,
        sampler: str | Spec | Policy | SpeculativeSampler | ContinuousSampler | ScaleSampler | None = None,
        num_inference_steps: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        prompt_embeds: Tensor | list[Tensor] | None = None,
        prompt_attention_mask: Tensor | None = None,
        cfg_interval: int | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> Any:
        """Draws images.

        Args:
            prompt: a caption or captions, for a model that reads them.
            guidance_scale: 1 or less disables guidance, of token maps 0. None, here and below: the checkpoint's
                default, else disabled.
            num_images_per_prompt: number of images of each caption or class.
            generator: the source of one seed per image; a list has one generator per image. None: torch's default.
            output_type: "pil" images, "np" [B, H, W, 3] or "pt" [B, 3, H, W] float32 in 0..1, or "latent", which
                needs no decoder: codes, int64 [B, h, w], or of token maps [B, L]; or vectors, float32 [B, h, w, d].
            return_dict: an ImagePipelineOutput, or (images,).
            callback_on_step_end: called as callback(pipe, step, timestep, tensors) after every round of decoding;
                `timestep` is the highest number of uncommitted tokens of any image. It must not change the tensors;
                `pipe._interrupt = True` stops the decoding, and uncommitted tokens stay blank (-1 in codes, 0 in
                vectors).
            callback_on_step_end_tensor_inputs: "latents", the codes so far, -1 where uncommitted, or the vectors, 0
                there; and "committed", the tokens that this round added, as a bool tensor of the codes' shape.
            class_labels: a class or classes, for a model that draws them.
            sampler: as in `Model.generate`; None: the checkpoint's default, else codes one at a time, vectors by `mar`,
                and token maps one at a time.
            num_inference_steps: the steps of `mar`, for models of vectors, in place of a sampler.
            temperature, top_k, top_p, cfg_interval: as in `Model.generate`; a temperature that is set nowhere is 1.
            prompt_embeds: outputs of the text encoder, in place of captions: [B, n, D], or a list of [n, D].
            prompt_attention_mask: [B, n], 0 where prompt_embeds is padding.
            negative_prompt: for guided captions: the caption or captions that guidance leads away from.
            height, width: in pixels. Of a model of several sizes they choose one; of a model of one size they are that
                size, or a multiple of it, which repeats every pixel.

        Raises:
            SpecError: an invalid argument, before the first forward.
            ModelError: a decoder or text encoder is needed and missing.
        """
        if output_type not in _TYPES:
            raise SpecError(f"output_type {output_type!r} is unknown", hint=f"it is one of {', '.join(_TYPES)}")
        if output_type != "latent":
            hint = 'load it with decoder=FILE, its {decoder}, or set output_type="latent"'
            self.model.driver.check_drawable(hint=hint)
        if prompt_attention_mask is not None:
            prompt_embeds = _unpadded(prompt_embeds, prompt_attention_mask)
        if num_inference_steps is not None:
            sampler = self._in_steps(num_inference_steps, sampler)
        request: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        request |= {"cfg": guidance_scale, "cfg_interval": cfg_interval, "negative_prompt": negative_prompt}
        request |= {"label": class_labels, "prompt_embeds": prompt_embeds, "num_images": num_images_per_prompt}
        given = {name: value for name, value in request.items() if value is not None}
        if is_number(guidance_scale) and guidance_scale <= self.model.driver.least_cfg:
            given["cfg"] = None
        arguments = with_defaults(self.imaging, given)
        scale = 1
        if output_type != "latent" or self.imaging.sizes is not None:
            size, scale = size_and_scale(self.model.name, self.imaging, height, width)
            arguments |= {} if size is None else {"size": size}
        call = self._seeded(prompt, arguments, generator)
        assert call.imaging is not None, "an image model"
        progress = _Progress(self, call.imaging, callback_on_step_end, callback_on_step_end_tensor_inputs)
        self.result, self._interrupt = None, False
        started, codes = time.perf_counter(), progress.codes
        with self.progress_bar(total=len(call.seeds) * codes.codes.shape[1]) as bar:
            for event in self.model.run(call):
                codes(event)
                if isinstance(event, Step):
                    bar.update(int(event.committed.sum()))
                    progress.report(event)
                    if self._interrupt:
                        break
                elif isinstance(event, Finished):
                    draw = output_type == "pil"
                    self.result = self.model.result(call, event, time.perf_counter() - started, draw=draw)
        images = self._output(call.imaging, codes, output_type, scale)
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _in_steps(self, steps: int, sampler: object) -> str:
        """The spec for `num_inference_steps`."""
        check_whole("num_inference_steps", steps, 1, hint="num_inference_steps=16 draws groups of tokens in 16 steps")
        spec: str | None = self.model.driver.in_steps(steps)
        if spec is None or sampler is not None:
            why = "works with mar only" if sampler is None else "cannot be combined with sampler="
            raise SpecError(f"num_inference_steps={steps} {why}", hint="set the steps in sampler=")
        return spec

    def _seeded(self, prompt: Any, arguments: dict[str, Any], generator: Any) -> Call:
        """The request, each row with a seed from the generators."""
        call: Call = self.model.prepare(prompt, **arguments)
        rows = len(call.seeds)
        if isinstance(generator, (list, tuple)):
            if len(generator) != rows:
                raise SpecError(f"{len(generator)} generators for {rows} images", hint="give one, or one per image")
            seeds = [seed for one in generator for seed in _seeds(one, 1)]
        else:
            seeds = _seeds(generator, rows)
        return call.seeded(seeds)  # preparing again would encode the captions again, which is slow

    def _output(self, imaging: Imaging, progress: Codes, output_type: str, scale: int) -> Any:
        """Codes or vectors in the form of `output_type`, images enlarged by `scale`."""
        tokens = progress.codes, progress.latents
        if output_type == "pil":
            images = None if self.result is None else self.result.images
            images = unfinished(imaging, *tokens) if images is None else images
            return [enlarged(image, scale) for image in images]
        if output_type == "latent":
            return progress.tensor().to(self.device)
        if (progress.codes < 0).any():  # interrupted: blank where the PIL images are blank
            pixels = np.stack([np.asarray(one) for one in unfinished(imaging, *tokens)])
            decoded = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        else:  # one at a time: each image is the same in any batch
            rows = decodable(imaging, *tokens)
            decoded = torch.cat([imaging.decode(row[None]) for row in rows]).div(2).add(0.5).clamp(0, 1)
        decoded = decoded.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        return decoded if output_type == "pt" else decoded.permute(0, 2, 3, 1).cpu().numpy()


class _Progress:
    """Calls the callback after every round."""

    def __init__(
        self, pipe: ImagePipeline, imaging: Imaging, callback: Callable[..., Any] | None, names: Sequence[str]
    ) -> None:
        if isinstance(callback, (PipelineCallback, MultiPipelineCallbacks)):
            names = callback.tensor_inputs
        unknown = [name for name in names if name not in _TENSORS]
        if unknown:
            raise SpecError(
                f"callback_on_step_end_tensor_inputs has {unknown}", hint=f"it may have {', '.join(_TENSORS)}"
            )
        self.pipe, self.callback, self.names = pipe, callback, names
        self.codes = Codes(imaging.layout)

    def report(self, event: Step) -> None:
        if self.callback is None:
            return
        tensors = {"latents": self.codes.tensor(), "committed": to_grid(self.codes.fresh, self.codes.layout)}
        inputs = {name: tensors[name].clone().to(self.pipe.device) for name in self.names}
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        remaining = int((self.codes.codes < 0).sum(1).max())
        answer = self.callback(self.pipe, event.number, remaining, inputs) or {}
        for name, tensor in before.items():
            if not torch.equal(answer.get(name, inputs[name]), tensor):
                raise SpecError(
                    f"the callback changes {name}, but callbacks cannot change tokens",
                    hint="callbacks may read them, and stop the decoding with pipe._interrupt = True",
                )


def _path(name: str | os.PathLike[str]) -> str | Path:
    return name if isinstance(name, str) else Path(name)


def _seeds(generator: Any, count: int) -> list[int]:
    """`count` seeds from the generator; without one from torch's default generator, as in diffusers."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise SpecError(
            f"generator must be a torch.Generator or a list of them, got {type(generator).__name__}",
            hint="torch.Generator().manual_seed(0)",
        )
    device = torch.device("cpu") if generator is None else generator.device
    return [int(seed) for seed in torch.randint(2**62, (count,), generator=generator, device=device).tolist()]


def _unpadded(features: Any, mask: Tensor) -> list[Tensor]:
    if not isinstance(features, Tensor) or features.ndim != 3 or mask.shape != features.shape[:2]:
        raise SpecError(
            f"prompt_attention_mask {list(mask.shape)} does not fit prompt_embeds",
            hint="pass [B, n] for prompt_embeds [B, n, D], or leave it out",
        )
    return [row[is_token] for row, is_token in zip(features, mask.to(features.device) != 0, strict=True)]
