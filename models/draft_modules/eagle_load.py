"""Loads an EAGLE of any layout for its target, and reports the decisions made."""

from __future__ import annotations

from ..errors import ModelError, listed
from ..layers.empty_weights import empty_weights
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import TargetStates
from .contracts import DraftFiles, DraftKind, register
from .eagle import EagleModule
from .eagle_files import HARMLESS, EagleLayout, is_eagle, read_layout
from .eagle_taps import find_taps
from .parameters import check_head, fill, is_copy, left_out, target_rows
from .vocabulary import find_vocabulary


def load(
    files: DraftFiles, target: LanguageModel, *, taps: str | None = None, make: type[EagleModule] = EagleModule
) -> EagleModule:
    """Reads an EAGLE for `target`; `taps` "1-29-57" names the layers whose outputs an EAGLE-3 reads.

    Raises ModelError for what does not fit the target, and for tensors that are missing or unknown.
    """
    form = read_layout(files)
    config, published = form.config, files.published
    _check_target(files, target, form)
    own_embedding = form.version == "3" and "embed_tokens.weight" in published
    if form.vocabulary is not None and "lm_head.weight" not in published and not form.tied:
        raise ModelError(
            f"{files.name} lacks lm_head.weight", "to use the target's head, its config needs tie_word_embeddings: true"
        )
    ids = find_vocabulary(files, target, form.vocabulary, of=form.config.vocab)
    with empty_weights():
        module = make(files, target, form, own_embedding=own_embedding)
    names = form.names(published) | make.more_names
    harmless = [*HARMLESS, "d2t", "t2d"]
    if not own_embedding:
        harmless.append(r"embed_tokens\.weight")  # a copy of the target's
    fill(
        module,
        files,
        names,
        fused_rows=config.fused_rows,
        harmless=harmless,
        by_rows=("embedding", *make.more_names),
    )
    module.vocabulary = ids
    module.rope = Rope.of(config)
    version = "FSPAD" if form.version == "fspad" else "Dovetail" if form.gated else f"EAGLE-{form.version}"
    lines = [f"{version}, {form.style} layout, {config.layers} layer(s) of width {config.width}"]
    if form.version != "3":
        module.states = TargetStates(normed=True)
    else:
        chosen = find_taps(files.config, target.layers, taps)
        if len(chosen.layers) != form.features:
            raise ModelError(
                f"fc.weight of {files.name} reads {form.features} states, and taps names {len(chosen.layers)} layers",
                f"name {form.features} layers, as in taps=1-29-57",
            )
        module.states = TargetStates(chosen.layers)
        module.taps = chosen
        lines.append(f"reads the outputs of layers {listed(map(str, chosen.layers))}: {chosen.reason}")
    if is_copy(module.embedding, target.decoder.embedding):
        module.embedding = None
        lines.append("embed_tokens is the target's: shared")
    if form.tied:
        module.head = None if ids is None else target_rows(files, target, ids)
        lines.append("the head is the target's, its rows for the draft ids")
    lines.append(f"drafts {target.vocab_size if ids is None else len(ids)} of {target.vocab_size} ids")
    lines += left_out(files, config, **({} if own_embedding else {"embed_tokens": target.decoder.embedding}))
    module.about = tuple(lines)
    return module.eval()


def _check_target(files: DraftFiles, target: LanguageModel, form: EagleLayout) -> None:
    config = form.config
    wide = files.config.get("target_hidden_size") or config.width
    if wide != target.width:
        raise ModelError(
            f"{files.name} reads states of width {wide}; those of {target.name} have {target.width}",
            "it was trained for another target",
        )
    if config.width != target.width and (form.version != "3" or "embed_tokens.weight" not in files.published):
        raise ModelError(
            f"{files.name} has width {config.width} and {target.name} {target.width}, and no embed_tokens of its own",
            "it was trained for another target",
        )
    if config.width != target.width and form.tied:
        raise ModelError(
            f"{files.name} has width {config.width} and no lm_head.weight; the head of {target.name} has"
            f" {target.width} columns",
            "export it with its own head",
        )
    if abs(config.vocab - target.vocab_size) > target.vocab_size // 100:  # a smaller difference is padding
        raise ModelError(
            f"{files.name} is for a vocabulary of {config.vocab} ids; {target.name} has {target.vocab_size}",
            "it was trained for another target",
        )
    if form.vocabulary is None or form.tied:
        check_head(files.name, target)


KIND = register(
    DraftKind(
        "eagle",
        "EAGLE-1 to -3, FSPAD, Dovetail: a layer over pairs of a token and the target's state before it",
        is_eagle,
        load,
        {
            "EAGLE-1 and -2, official": "replay of the authors' code",
            "EAGLE-3, official": "replay of the authors' code",
            "EAGLE-3, SpecForge": "replay of the authors' code",
            "EAGLE-3, speculators": "replay of the authors' code",
            "EAGLE-1, speculators": "a plain version",
            "FSPAD": "a plain version",
            "Dovetail": "a plain version",
        },
    )
)
