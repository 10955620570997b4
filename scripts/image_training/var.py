"""Training of a model of codes of several scales: replaced codes, loss, evaluation, card.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905
Infinity: Scaling Bitwise AutoRegressive Modeling for High-Resolution Image Synthesis, https://arxiv.org/abs/2412.04431
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from text_training.loop import read_card
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from image_training.corpus import Chunks
from image_training.export import rounded, with_figures
from image_training.export_var import DEFAULTS, export, loaded
from image_training.features import NEAR, FeatureCorpus, targets_and_inputs
from image_training.multiscale_run import WHOLE
from image_training.options import Options
from image_training.painted import painted_right
from image_training.run import Descent, device_of, muon_and_adamw
from image_training.scale_network import ScaleNetwork
from pardec.images.classes import NAMES
from pardec.models.files.catalog import EMBEDDED
from pardec.models.scales.tokenizer_files import load_tokenizer
from pardec.requests import draft_models

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = "tiny-var-vq"
SHAPES: dict[str, dict[str, int]] = {
    "tiny-var": {"embed_dim": 192, "depth": 5, "num_heads": 6},
    "tiny-var-draft": {"embed_dim": 92, "depth": 4, "num_heads": 4},
}
DROPPED = 0.1  # share of the classes that are dropped
REPLACED = 0.3  # share of an image's codes that others replace, at most: a share is drawn evenly for each image
LATE = 3  # scale from which on a draft model draws
LARGE = EMBEDDED / "tiny-var"  # what draws the first scales for a draft model


class VARRun(Descent):
    """Trains a model of classes."""

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        self.tokenizer = options.tokenizer or ROOT / "runs" / TOKENIZER / WHOLE
        self.vq = load_tokenizer(self.tokenizer, device=device)
        sides = self.vq.scales.sides
        self.config: dict[str, Any] = {
            "model_type": "var",
            **SHAPES[options.model],
            **options.shape,
            "shared_aln": False,
            "attn_l2_norm": True,
            "num_classes": len(NAMES),
            "patch_nums": list(sides),
            "norm_eps": 1e-6,
            "mlp_ratio": 4.0,
            "vocab_size": self.vq.vocab,
            "z_channels": self.vq.channels,
            "image_tokenizer": TOKENIZER,
        }
        model = ScaleNetwork(self.config)
        with torch.no_grad():
            model.initialise()
        if options.init:
            model.load_state_dict(loaded(options.init).state_dict())
        model = model.to(device)
        super().__init__(options, model)
        self.optimizers = muon_and_adamw(model, options.lr, within="blocks")
        self.forward: nn.Module = model
        if options.compile:
            self.forward = torch.compile(model, dynamic=False)
        self.corpus: Chunks = self.make_corpus(options.corpus or options.state / "corpus")
        self.go_on()

    def make_corpus(self, folder: Path) -> Chunks:
        """Makes the corpus of training batches."""
        return FeatureCorpus(folder, self.vq, seed=self.o.seed, chunks=self.o.chunks)

    def passing(self) -> AbstractContextManager[Any]:
        return sdpa_kernel(SDPBackend.MATH)  # compiled, half the time of what is chosen for a CPU

    def loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The mean cross entropy of the codes, in nats: minimised, and logged."""
        rng, rows = self.noise(), len(batch.labels)
        share = REPLACED * torch.rand(rows, generator=rng)
        codes, maps = targets_and_inputs(self.vq, batch.features.to(self.device), share, rng)
        dropped = torch.rand(rows, generator=rng) < DROPPED
        labels = torch.where(dropped, len(NAMES), batch.labels).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.forward(labels, maps)
        loss = F.cross_entropy(logits.float().flatten(0, 1), codes.flatten())
        return loss, loss.detach()

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        weights = {key: value.float() for key, value in rounded(self.average).items()}
        export(self.o.out, self.config, weights, self.card({}))
        count = self.o.pictures if final else max(1, self.o.pictures // 3)
        result = measured(self.name, self.o.out, count, decoder=self.tokenizer)
        self.curve.append({**self.point(), "right": result["right"]})
        export(self.o.out, self.config, weights, self.card(result))
        return result

    def card(self, result: dict[str, Any]) -> dict[str, Any]:
        before = {
            "started from": "random weights" if self.o.init is None else "the run before",
            **self.learned(),
        }
        card = self.described(before, {}, optimizer="Muon for the blocks, AdamW for the rest", seen="images seen")
        if self.o.init is not None:
            card["recipe"]["run before"] = read_card(self.o.init)["recipe"]
        return with_figures(card, result, of="classes", sampler="sequential")

    def learned(self) -> dict[str, Any]:
        """The card's entries on data and loss."""
        return {
            "data": f"{self.o.chunks * self.corpus.size} images of one object, positions and backgrounds drawn evenly, "
            f"as {TOKENIZER} features",
            "classes": f"{DROPPED:.0%} are dropped, for classifier-free guidance",
            "replaced": f"up to {REPLACED:.0%} of an image's codes, by one of the {NEAR} nearest; the codes of later "
            "scales are those of the residual that is left then",
            "loss": "cross entropy of all codes in one block-causal forward",
        }


def measured(name: str, folder: Path, count: int, *, decoder: Path | None, large: Path = LARGE) -> dict[str, Any]:
    """Shares of right images; of a draft model also where the large one, if it is there, samples the first scales."""
    result = painted_right(folder, count, decoder=decoder, sampler="sequential", settings=DEFAULTS)
    if name.endswith("-draft") and large.exists():
        draft_models.scale_model.cache_clear()  # the weights there may be newer than at the last evaluation
        sampler = f"code:refiner={folder},steps={LATE}"
        together = painted_right(large, count, decoder=decoder, sampler=sampler, settings=DEFAULTS)
        result |= {"late": {**together, "settings": together["settings"].replace(str(folder), name)}}
    return result
