"""Training of an image model: captions and codes, captions dropped for guidance, evaluation, card."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from text_training.loop import read_card
from torch import Tensor, nn

from image_training import words
from image_training.corpus import GROUND, Batch, Corpus
from image_training.drawn import drawn_right
from image_training.export import rounded, with_figures
from image_training.export_drawer import export, loaded
from image_training.network import Drawer, text_encoder
from image_training.options import Options
from image_training.run import Descent, device_of, muon_and_adamw
from pardec.models.images.vq import load_vq

SHAPES: dict[str, dict[str, Any]] = {
    "tiny-llamagen": {"dim": 192, "n_layer": 6, "n_head": 6, "ffn_hidden": 512},
    "tiny-llamagen-draft": {"dim": 96, "n_layer": 2, "n_head": 3, "ffn_hidden": 256},
}
TOKENIZER = "tiny-vq"
FEATURES, READING = 128, 2  # width and layers of the text encoder
DROPPED = 0.1  # share of the captions that are dropped
SHAPE_WEIGHT = 0.2  # weight of the losses that predict what the next cell shows, and the cell below it
NAMED = (GROUND + 1, words.KINDS[0])  # colours, and kinds of things; the ground is one of either
UNNAMED = -100  # the target below the last row
CAPTION_WEIGHT = (
    0.1  # weight of the loss that predicts a caption's content from the mean of its states, all that cells see
)


class DrawerRun(Descent):
    """Trains an image model; with a teacher, also on its distributions of codes, and with its text encoder."""

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        vq = load_vq(TOKENIZER).to(device)
        side = 48 // vq.shape.downsample
        self.config: dict[str, Any] = {
            "model_type": "llamagen",
            "gpt_type": "t2i",
            "vocab_size": vq.shape.codebook_size,
            "block_size": side * side,
            "cls_token_num": words.PLACES_OF_A_CAPTION,
            "caption_dim": FEATURES,
            "norm_eps": 1e-5,
            "rope_base": 10000,
            "image_tokenizer": TOKENIZER,
            **SHAPES[options.model],
            **options.shape,
        }
        self.taught_by = loaded(options.teacher) if options.teacher else None
        reader = text_encoder(len(words.vocabulary()), FEATURES, READING, words.PLACES_OF_A_CAPTION, words.PAD)
        parts = {"drawer": Drawer(self.config), "namer": nn.Linear(self.config["dim"], 2 * sum(NAMED))}
        parts["teller"] = nn.Linear(self.config["dim"], sum(words.KINDS))
        if self.taught_by is None:
            parts["reader"] = reader
        if options.init:
            before = loaded(options.init)
            for name in parts.keys() & before.keys():
                parts[name].load_state_dict(before[name].state_dict())
        model = nn.ModuleDict(parts).to(device)
        super().__init__(options, model)
        self.reader = reader if self.taught_by is None else self.taught_by["reader"].to(device)
        self.optimizers = muon_and_adamw(model, options.lr, within="layer")
        corpus = options.corpus or options.state / "corpus"
        self.corpus = Corpus(corpus, vq, seed=options.seed, chunks=options.chunks)
        self.drawn = torch.compile(self._drawn, dynamic=False) if options.compile else self._drawn
        self.go_on()

    def loss_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and its part from the cross entropy of the codes, in nats."""
        captions, codes, shown = (each.to(self.device) for each in (batch.captions, batch.codes, batch.shown))
        left_out = (torch.rand(len(codes), 1, 1, generator=self.noise()) < DROPPED).to(self.device)
        known = captions != words.PAD
        drawer = self.model["drawer"]
        with torch.autocast(self.device.type, torch.bfloat16):
            with torch.set_grad_enabled(self.taught_by is None):
                read = self.reader(input_ids=captions, attention_mask=known.long()).last_hidden_state
            features, places = words.right_aligned(read, known)
            given = torch.where(left_out, drawer.cls_embedding.uncond_embedding.to(features.dtype), features)
            logits, named = self.drawn(given, places, codes)
        flat, said = logits.float().flatten(0, 1), batch.said.to(self.device)
        told = F.cross_entropy(flat, codes.flatten())
        loss = told + SHAPE_WEIGHT * self.shape_loss(named.float(), shown, said)
        loss = loss + CAPTION_WEIGHT * self.caption_loss(drawer.cls_embedding(features.float()), places, said)
        if self.taught_by is not None:
            teacher = self.taught_by["drawer"]
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
                unsaid = teacher.cls_embedding.uncond_embedding.to(features.dtype)
                distributions = teacher.output(teacher.states(torch.where(left_out, unsaid, features), places, codes))
            loss = 0.5 * loss + F.cross_entropy(flat, distributions.float().softmax(-1).flatten(0, 1))
        return loss, told.detach()

    def _drawn(self, given: Tensor, places: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of every code, and of colour and shape at its grid position and the one below."""
        drawer = self.model["drawer"]
        states = drawer.states(given, places, codes)
        return drawer.output(states), self.model["namer"](states)

    def shape_loss(self, named: Tensor, shown: Tensor, said: Tensor) -> Tensor:
        """The loss of predicted colours and kinds `named` [B, cells, *] of the things `shown`, here and a row below."""
        ground = torch.zeros_like(said[:, :1])
        kind = torch.cat((said[:, :GROUND], ground), 1).gather(1, shown)
        side = math.isqrt(shown.shape[1])
        below = torch.full_like(shown[:, :side], UNNAMED)
        loss = torch.zeros((), device=named.device)
        for what, guess in zip((shown, kind), named.split([2 * many for many in NAMED], -1), strict=True):
            there = torch.stack((what, torch.cat((what[:, side:], below), 1)), -1).flatten()
            loss = loss + F.cross_entropy(guess.unflatten(-1, (2, -1)).flatten(0, 2), there, ignore_index=UNNAMED)
        return loss

    def caption_loss(self, states: Tensor, places: Tensor, said: Tensor) -> Tensor:
        """The loss of predicting a caption's words from the mean of its states [B, P, E]: summed cross entropy."""
        mean = (states.float() * places[..., None]).sum(1) / places.sum(1, keepdim=True)
        guesses = self.model["teller"](mean).split(words.KINDS, 1)
        losses = [F.cross_entropy(guess, true) for guess, true in zip(guesses, said.unbind(1), strict=True)]
        return torch.stack(losses).sum()

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        weights = {key: value.float() for key, value in rounded(self.average).items()}
        export(self.o.out, self.config, weights, self.card({}))
        count = self.o.pictures if final else max(1, self.o.pictures // 4)
        found = drawn_right(self.o.out, count)
        self.curve.append({**self.point(), "right": found["right"], "one": found["one"]})
        export(self.o.out, self.config, weights, self.card(found))
        return found

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        before = {
            "started from": "random weights" if self.o.init is None else "the run before",
            "data": f"{self.o.chunks * self.corpus.size} images of captions of the train split, as {TOKENIZER} codes",
        }
        after = {
            "captions": f"read by a text encoder of {READING} layers"
            + (", trained along" if self.taught_by is None else ", the teacher's")
            + f"; {DROPPED:.0%} are dropped, for classifier-free guidance",
            "loss": f"cross entropy of the next code + {SHAPE_WEIGHT:g} x predicting colour and shape at its own "
            f"grid position and the one below + {CAPTION_WEIGHT:g} "
            "x predicting the caption's words from the mean hidden state (both in training only)"
            + (
                ""
                if self.o.teacher is None
                else f"; half of that, half cross entropy against {self.o.teacher.name}'s distribution"
            ),
        }
        kept = nn.ModuleList(part for name, part in self.model.items() if name in ("drawer", "reader"))
        card = self.described(
            before, after, optimizer="Muon for the layers, AdamW for the rest", seen="images seen", model=kept
        )
        if self.o.init is not None:
            card["recipe"]["run before"] = read_card(self.o.init)["recipe"]
        return with_figures(card, found, of="captions", sampler="sequential")
