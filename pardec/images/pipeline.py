"""pardec's models of images behind the call of diffusers' image pipelines."""

from __future__ import annotations

import inspect
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
from pardec.samplers.spec import Policy, Spec
from pardec.samplers.speculative.contracts import SpeculativeSampler

from ..api import Model, load
from ..requests.continuous import VectorCall
from ..requests.images import check_drawable, enlarged, scale_of, with_defaults
from ..requests.text import Call
from ..result import Result
from ..views.unfinished import Codes, decodable, gridded, unfinished

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
        made = load(_path(model)) if isinstance(model, (str, os.PathLike)) else model
        if not isinstance(made, Model):
            raise SpecError(
                f"model is a pardec Model, a name or a folder, got {type(model).__name__}",
                hint="ImagePipeline(pardec.load(name))",
            )
        if made.imaging is None:
            raise SpecError(f"{made.name} is a text model and draws no images", hint="use its generate")
        self.register_modules(model=made)
        self.loading: tuple[Any, dict[str, Any]] | None = (model, {}) if made is not model else None
        self.result: Result | None = None
        self._interrupt = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> ImagePipeline:
        """Loads an embedded name, a folder, a file or a hub id by `pardec.load`, which also says what `kwargs` may be;
        diffusers' names torch_dtype and local_files_only are understood.

        Raises:
            SpecError: another argument, or a text model. And what `pardec.load` raises.
        """
        if kwargs.pop("trust_remote_code", False):
            raise SpecError("trust_remote_code=True, and pardec runs no remote code", hint="leave it out")
        for theirs, ours in (("torch_dtype", "dtype"), ("local_files_only", "offline")):
            if theirs in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        known = [name for name in inspect.signature(load).parameters if name != "name"]
        for argument in kwargs:
            if argument not in known:
                raise SpecError(f"from_pretrained takes no {argument!r}", hint=f"pardec.load takes {', '.join(known)}")
        path = _path(pretrained_model_name_or_path)
        made = cls(load(path, **kwargs))
        made.loading = (path, kwargs)
        return made

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Refused: the model's files are what it was loaded from."""
        raise SpecError(f"an ImagePipeline is not saved; its model lies in {self.model.path}", hint="copy those files")

    @property
    def device(self) -> torch.device:
        return self.model.network.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.network.dtype  # type: ignore[no-any-return]

    @property
    def imaging(self) -> Imaging:
        """The image side of the model."""
        return self.model.imaging  # type: ignore[no-any-return]

    @property
    def interrupt(self) -> bool:
        """Whether a callback asked to stop."""
        return self._interrupt

    def to(self, *args: Any, **kwargs: Any) -> ImagePipeline:
        """Itself, on another device or in another dtype: the weights are read again, from where they came.

        Raises:
            SpecError: the pipeline was made of a loaded Model, and does not know from where.
        """
        kwargs.pop("silence_dtype_warnings", None)
        asked: dict[str, Any] = {}
        for wanted in (*args, *kwargs.values()):
            if isinstance(wanted, torch.dtype):
                asked |= {"dtype": wanted} if wanted != self.dtype else {}
            elif wanted is not None:
                place = torch.device(wanted)
                same = place.type == self.device.type and place.index in (None, self.device.index)
                asked |= {} if same else {"device": place}
        if not asked:
            return self
        if self.loading is None:
            raise SpecError(
                f"{self.model.name} is on {self.device} in {self.dtype}, and was loaded before the pipeline was made",
                hint='ImagePipeline.from_pretrained(name, device="cuda") places it, and can move it',
            )
        name, given = self.loading
        self.loading = (name, {"device": self.device, "dtype": self.dtype, **given, **asked})
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
        sampler: str | Spec | Policy | SpeculativeSampler | ContinuousSampler | None = None,
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
            guidance_scale: 1 or less is none; None, here and below, takes what the checkpoint names, else none.
            num_images_per_prompt: of each caption or class.
            generator: where the seeds come from, one an image; a list has one generator an image. None: torch's own.
            output_type: "pil" images, "np" [B, H, W, 3] or "pt" [B, 3, H, W] float32 in 0..1, or "latent", which
                needs no decoder: codes, int64 [B, h, w], or vectors, float32 [B, h, w, d].
            return_dict: an ImagePipelineOutput, or (images,).
            callback_on_step_end: called as callback(pipe, step, timestep, tensors) after every round of decoding;
                `timestep` is the number of cells that the image furthest behind has still to get. It sees and changes
                no token; with `pipe._interrupt = True` it stops the decoding, and cells not known yet stay blank (-1,
                and 0 in vectors).
            callback_on_step_end_tensor_inputs: "latents", the codes so far, -1 where there is none yet, or the vectors,
                0 there; and "committed", what this round added: bool [B, h, w].
            class_labels: a class or classes, for a model that draws them.
            sampler: as in `Model.generate`; None takes what the checkpoint names, else codes come one by one, and
                vectors by `mar`.
            num_inference_steps: where tokens are vectors, and in place of a sampler: steps of `mar`.
            temperature, top_k, top_p, cfg_interval: as in `Model.generate`; the temperature's last resort is 1.
            prompt_embeds: what the text encoder makes of captions, in their place: [B, n, D], or a list of [n, D].
            prompt_attention_mask: [B, n], 0 where prompt_embeds is padding.
            negative_prompt: of captions that are guided: what guidance leads away from, one, or one a prompt.
            height, width: in pixels. A model draws images of one size: that size, or a multiple of it, whose pixels
                are the model's, each repeated.

        Raises:
            SpecError: an argument that cannot work, before the first forward.
            ModelError: no decoder, or no text encoder, where one is needed.
        """
        if output_type not in _TYPES:
            raise SpecError(f"output_type {output_type!r} is unknown", hint=f"it is one of {', '.join(_TYPES)}")
        if output_type != "latent":
            hint = 'load it with decoder=FILE, its {decoder}, or ask for output_type="latent"'
            check_drawable(self.model.network, hint=hint)
        if prompt_attention_mask is not None:
            prompt_embeds = _unpadded(prompt_embeds, prompt_attention_mask)
        if num_inference_steps is not None:
            sampler = self._in_steps(num_inference_steps, sampler)
        given: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        given |= {"cfg": guidance_scale, "cfg_interval": cfg_interval, "negative_prompt": negative_prompt}
        given |= {"label": class_labels, "prompt_embeds": prompt_embeds, "num_images": num_images_per_prompt}
        arguments = with_defaults(self.imaging, {name: value for name, value in given.items() if value is not None})
        if arguments.get("cfg") is not None and arguments["cfg"] <= 1:
            arguments["cfg"] = None
        scale = 1 if output_type == "latent" else scale_of(self.model.name, self.imaging, height, width)
        progress = _Progress(self, callback_on_step_end, callback_on_step_end_tensor_inputs)
        call = self._seeded(prompt, arguments, generator)
        self.result, self._interrupt = None, False
        started, codes = time.perf_counter(), progress.codes
        with self.progress_bar(total=len(call.seeds) * codes.codes.shape[1]) as bar:
            for event in self.model.run(call):
                codes(event)
                if isinstance(event, Step):
                    bar.update(int(event.committed.sum()))
                    progress.tell(event)
                    if self._interrupt:
                        break
                elif isinstance(event, Finished):
                    draw = output_type == "pil"
                    self.result = self.model.result(call, event, time.perf_counter() - started, draw=draw)
        images = self._output(codes, output_type, scale)
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _in_steps(self, steps: int, sampler: object) -> str:
        """The spec that diffusers' name for a number of steps stands for."""
        if self.model.family != "continuous" or sampler is not None:
            why = "tokens of this model have ids" if sampler is None else "a sampler is given as well"
            raise SpecError(f"num_inference_steps={steps} is for mar, and {why}", hint="sampler= says how many steps")
        return f"mar:steps={steps}"

    def _seeded(self, prompt: Any, arguments: dict[str, Any], generator: Any) -> Call | VectorCall:
        """The request, each row with a seed from the generators."""
        call: Call | VectorCall = self.model.prepare(prompt, **arguments)
        rows = len(call.seeds)
        if isinstance(generator, (list, tuple)):
            if len(generator) != rows:
                raise SpecError(f"{len(generator)} generators for {rows} images", hint="give one, or one an image")
            seeds = [seed for each in generator for seed in _seeds(each, 1)]
        else:
            seeds = _seeds(generator, rows)
        # And not prepared anew: reading captions takes long.
        return call.seeded(seeds)

    def _output(self, progress: Codes, output_type: str, scale: int) -> Any:
        """Codes or vectors as the caller wants them, images `scale` times as large."""
        held = progress.codes, progress.latents
        if output_type == "pil":
            images = None if self.result is None else self.result.images
            pictures = unfinished(self.imaging, *held) if images is None else images
            return [enlarged(image, scale) for image in pictures]
        if output_type == "latent":
            return progress.tensor().to(self.device)
        if (progress.codes < 0).any():  # interrupted: the blank cells are those of the images
            pixels = np.stack([np.asarray(one) for one in unfinished(self.imaging, *held)])
            made = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        else:  # one by one: an image is the same in any batch
            rows = decodable(self.imaging, *held)
            made = torch.cat([self.imaging.decode(row[None]) for row in rows]).div(2).add(0.5).clamp(0, 1)
        made = made.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        return made if output_type == "pt" else made.permute(0, 2, 3, 1).cpu().numpy()


class _Progress:
    """Calls the callback after every round."""

    def __init__(self, pipe: ImagePipeline, callback: Callable[..., Any] | None, names: Sequence[str]) -> None:
        if isinstance(callback, (PipelineCallback, MultiPipelineCallbacks)):
            names = callback.tensor_inputs
        unknown = [name for name in names if name not in _TENSORS]
        if unknown:
            raise SpecError(
                f"callback_on_step_end_tensor_inputs has {unknown}", hint=f"it may have {', '.join(_TENSORS)}"
            )
        self.pipe, self.callback, self.names = pipe, callback, names
        self.codes = Codes(pipe.imaging.layout)

    def tell(self, event: Step) -> None:
        if self.callback is None:
            return
        held = {"latents": self.codes.tensor(), "committed": gridded(self.codes.fresh, self.codes.layout)}
        handed = {name: held[name].clone().to(self.pipe.device) for name in self.names}
        before = {name: tensor.clone() for name, tensor in handed.items()}
        behind = int((self.codes.codes < 0).sum(1).max())
        answer = self.callback(self.pipe, event.number, behind, handed) or {}
        for name, tensor in before.items():
            if not torch.equal(answer.get(name, handed[name]), tensor):
                raise SpecError(
                    f"the callback changes {name}, and the loop takes no tokens from outside",
                    hint="callbacks may look, and stop with pipe._interrupt = True",
                )


def _path(name: str | os.PathLike[str]) -> str | Path:
    return name if isinstance(name, str) else Path(name)


def _seeds(generator: Any, count: int) -> list[int]:
    """`count` seeds from the generator, or from torch's own stream as diffusers does without one."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise SpecError(
            f"generator is a torch.Generator or a list of them, got {type(generator).__name__}",
            hint="torch.Generator().manual_seed(0)",
        )
    place = torch.device("cpu") if generator is None else generator.device
    return [int(seed) for seed in torch.randint(2**62, (count,), generator=generator, device=place).tolist()]


def _unpadded(features: Any, mask: Tensor) -> list[Tensor]:
    if not isinstance(features, Tensor) or features.ndim != 3 or mask.shape != features.shape[:2]:
        raise SpecError("prompt_attention_mask goes with prompt_embeds [B, n, D], as [B, n]", hint="or leave it out")
    return [row[kept] for row, kept in zip(features, mask.to(features.device) != 0, strict=True)]
