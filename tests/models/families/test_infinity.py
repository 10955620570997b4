"""Infinity: codes, logits and pixels of the authors' code, layouts, sizes, refusals, and images from end to end.

`RECORDED` was made once by the authors' inference code in float64 (`autoregressive_infer_cfg` with FlashAttention
replaced by its formula, `MultiScaleBSQ` and the decoder of `flux_vqgan`), from the tensors of `infinity_files`: two
captions of 5 and 3 tokens, maps of the size 0.06M. `sums` are the sums over a map of i times its i-th code, for each
map and image; `logits` the first three guided logits, divided by the temperature, of the last code of each image;
`pixels` those at row 7 and column 20. In the sampled runs a bit is 1 where its uniform reaches the probability of 0.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import pardec
from pardec.models.errors import ArgumentError, ModelError, PardecError, SpecError
from pardec.models.images.captions import encoder_name
from pardec.models.images.contracts import Condition
from pardec.models.load import load_any, load_scales
from pardec.models.loading.kinds import kind_of
from pardec.models.loading.recognition import describe
from pardec.models.loading.update import load_weights
from pardec.models.scales.bitwise import load_decoder
from pardec.models.scales.contracts import ScaleModel
from pardec.models.scales.infinity import InfinityTransformer
from pardec.samplers.events import Finished
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode
from tests.models import infinity_files as files
from tests.models.infinity_files import BITS, FEATURES, LONGEST, TOKENS

ENDS = [1, 5, 21, 57, 121, 265, 521]
RECORDED: dict[str, dict[str, Any]] = {
    "greedy": {
        "spec": "sequential:order=temperature", "settings": {"temperature": 0.0, "cfg": 3.0},
        "sums": [[43, 47, 4080, 27602, 87056, 417008, 1283903], [43, 301, 3626, 15887, 47139, 183379, 602710]],
        "logits": [[-2.33357, 0.61987, 1.77084], [0.33356, -1.9354, -1.33963]],
        "pixels": [[-0.20524, 0.18061, 0.73781], [0.28357, -0.22802, 0.64533]],
    },
    "unguided": {
        "spec": "sequential:order=temperature", "settings": {"temperature": 1.0, "cfg": None},
        "sums": [[27, 94, 3280, 16069, 49986, 290700, 932419], [35, 446, 4248, 14841, 61936, 254088, 736907]],
        "logits": [[-0.05439, -0.21821, 2.10993], [0.05319, -1.47533, 0.44148]],
        "pixels": [[0.47714, -0.39439, -0.03956], [0.05885, -0.19194, 0.35226]],
    },
    "negative prompt": {  # the second caption's, guidance 2 at three maps and then 1.5, top-p 0.8
        "spec": "sequential:order=temperature,cfgs=1x3/0.75",
        "settings": {"temperature": 4.0, "cfg": 2.0, "top_p": 0.8},
        "sums": [[51, 296, 4595, 21437, 60304, 311193, 1010021], [35, 406, 5272, 18689, 76583, 334593, 1024171]],
        "logits": [[0.00896, -0.06572, 0.40635], [0.03353, -0.36827, -0.07328]],
        "pixels": [[0.34905, -0.15346, 0.1442], [0.2542, 0.2533, 0.18198]],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.folder(tmp_path_factory.mktemp("published") / "infinity")


@pytest.fixture(scope="module")
def model(folder: Path) -> ScaleModel:
    return load_scales(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def drawing(folder: Path) -> pardec.Model:
    return pardec.load(folder, device="cpu", dtype="float32", text_encoder="tiny-llamagen")


def conditions() -> tuple[Condition, ...]:
    return tuple(Condition(features=each) for each in files.captions()[:2])


def run(model: ScaleModel, spec: str = "sequential:order=temperature", **more: Any) -> Finished:
    request = ScaleRequest((), **{"conditions": conditions(), "source": files.Uniforms(), **more})
    return [*decode(model, resolve(spec, "scales"), request)][-1]


def inputs(model: ScaleModel, codes: Tensor) -> Tensor:
    """The transformer's inputs at all maps but the first, for the codes of all."""
    quantizer, starts = model.quantizer, model.scales.starts
    total, maps = quantizer.start(len(codes)), []
    for scale in range(len(model.scales) - 1):
        total = quantizer.add(total, codes[:, starts[scale] : starts[scale + 1]], scale)
        maps.append(quantizer.map_of(total, scale + 1))
    return torch.cat(maps, 1)


def reading(model: ScaleModel, *texts: Tensor, double: bool = False) -> InfinityTransformer:
    transformer = model.transformer
    if double:
        transformer = load_scales(model.path, device="cpu", dtype="float32").transformer.double()  # type: ignore
    return transformer.reading(texts)


@pytest.mark.parametrize("case", RECORDED)
def test_codes_logits_and_pixels_are_the_authors(model: ScaleModel, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    recorded, (first, second, negative) = RECORDED[case], files.captions()
    settings, own = recorded["settings"], conditions()
    if case == "negative prompt":
        monkeypatch.setattr(model.imaging, "encode", lambda texts: [negative])
        own = own[0], Condition(features=second, negative="bad")
    codes = torch.from_numpy(run(model, recorded["spec"], conditions=own, **settings).tokens)
    maps = [codes[:, start:stop] for start, stop in zip([0, *ENDS], ENDS, strict=False)]
    assert [[int((row * torch.arange(1, len(row) + 1)).sum()) for row in each] for each in maps] == [
        list(each) for each in zip(*recorded["sums"], strict=True)
    ]
    pixels = model.imaging.decode(codes)
    assert pixels.shape == (2, 3, 32, 32)
    assert torch.allclose(pixels[:, :, 7, 20], torch.tensor(recorded["pixels"]), atol=2e-4)
    # All maps in one forward: block-causal, with the unconditional rows after all others.
    uncond = [*model.imaging.texts(own, [0, 1])[2:]]
    transformer, both = reading(model, first, second, *uncond), inputs(model, codes).repeat(2, 1, 1)
    cond, free = transformer(torch.arange(4), both, transformer.new_cache(4), first=0, last=6)[:, -1, :3].chunk(2)
    cfg = {"greedy": 3.0, "unguided": 1.0, "negative prompt": 1.5}[case]
    guided = (cfg * cond + (1 - cfg) * free) / (settings["temperature"] or 1.0)
    assert torch.allclose(guided, torch.tensor(recorded["logits"]), atol=2e-4)


def test_several_maps_in_one_forward_are_map_by_map(model: ScaleModel) -> None:
    codes = torch.randint(2**BITS, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    transformer, maps = reading(model, *files.captions()[:2], double=True), inputs(model, codes).double()
    labels, starts = torch.arange(2), model.scales.starts

    def forwards(*cuts: tuple[int, int]) -> list[Tensor]:
        cache = transformer.new_cache(2)
        spans = [maps[:, max(starts[first], 1) - 1 : starts[last + 1] - 1] for first, last in cuts]
        return [
            transformer(labels, span, cache, first=first, last=last)
            for (first, last), span in zip(cuts, spans, strict=True)
        ]

    single, (early, late) = forwards(*((scale, scale) for scale in range(7))), forwards((0, 2), (3, 6))
    assert (early - single[2]).abs().max() < 1e-10
    assert (late - single[6]).abs().max() < 1e-10


def test_a_row_is_the_same_alone(model: ScaleModel) -> None:
    both = run(model, source=Keyed((5, 6)), cfg=3.0).tokens
    for row, seed in enumerate((5, 6)):
        alone = run(model, conditions=conditions()[row : row + 1], source=Keyed((seed,)), cfg=3.0)
        assert np.array_equal(alone.tokens[0], both[row])


def test_rows_of_a_cache_may_be_chosen(model: ScaleModel) -> None:
    """Captions of unequal length, and a forward of the second row alone."""
    codes = torch.randint(2**BITS, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    transformer, maps = reading(model, *files.captions()[:2]), inputs(model, codes)
    whole, cache = transformer.new_cache(2), transformer.new_cache(2)
    expected = transformer(torch.arange(2), maps, whole, first=0, last=6)
    row = torch.tensor([1])
    transformer(torch.arange(2), maps[:, :20], cache, first=0, last=2)
    found = transformer(row, maps[1:, 20:], cache, first=3, last=6, rows=row)
    assert torch.allclose(found[0], expected[1], atol=1e-4)


def test_a_code_has_the_probability_of_its_bits(model: ScaleModel) -> None:
    """The first code, whose logits follow from the caption alone; its first bit is the highest."""
    transformer = reading(model, *files.captions()[:2])
    logits = transformer(torch.arange(2), torch.zeros(2, 0, BITS), transformer.new_cache(2), first=0, last=0)
    probs, end, drawn = logits[:, 0].view(2, BITS, 2).softmax(-1), run(model), files.Uniforms().each[:, :BITS]
    bits = (probs[..., 0] <= drawn).long()
    assert end.tokens[:, 0].tolist() == [int("".join(map(str, row)), 2) for row in bits.tolist()]
    assert np.allclose(end.trace.commit_score[:, 0], probs.gather(-1, bits[..., None])[..., 0].prod(-1), atol=1e-5)


@pytest.mark.parametrize("chunks", [0, 1, 4])
def test_blocks_in_chunks_or_one_after_the_other_load(model: ScaleModel, tmp_path: Path, chunks: int) -> None:
    tensors = files.transformer(chunks=chunks, each=4 // max(chunks, 1))
    own = load_scales(files.folder(tmp_path, tensors=tensors), device="cpu", dtype="float32")
    assert np.array_equal(run(own).tokens, run(model).tokens)


def test_other_containers_and_names_load(model: ScaleModel, tmp_path: Path) -> None:
    """A training file, safetensors with a config.json, and a tokenizer whose convolutions are named without `conv`."""
    expected, tensors = run(model).tokens, files.transformer()
    files.folder(tmp_path)
    torch.save({"trainer": {"gpt_fsdp": tensors, "other": 1}}, tmp_path / "infinity_2b_reg.pth")
    plain = {re.sub(r"\.(conv|norm)(?=\.(weight|bias)$)", "", name): tensor for name, tensor in files.decoder().items()}
    assert "decoder.up.1.upsample.conv.weight" in plain
    torch.save(plain, tmp_path / "infinity_vae_d32reg.pth")
    own = load_scales(tmp_path / "infinity_2b_reg.pth", device="cpu", dtype="float32")
    assert np.array_equal(run(own).tokens, expected)
    codes = torch.from_numpy(expected)
    assert torch.equal(own.imaging.decode(codes), model.imaging.decode(codes))
    other = tmp_path / "folder"
    other.mkdir()
    save_file({name: each.contiguous() for name, each in tensors.items()}, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps({"model_type": "infinity", "pn": "0.06M", "depth": 4}))
    assert np.array_equal(run(load_scales(other, device="cpu", dtype="float32")).tokens, expected)
    known = kind_of(other)
    assert (known.family, known.draws) == ("scales", "text")


def test_a_folder_without_a_config_is_recognised(folder: Path) -> None:
    assert describe(folder) == describe(folder / "infinity_2b_reg.pth") | {"name": folder.name}
    assert (describe(folder)["family"], describe(folder)["loads"]) == ("infinity", "natively")
    assert kind_of(folder) is None


def test_the_text_encoder_is_named_or_in_the_folder(tmp_path: Path) -> None:
    assert encoder_name(tmp_path, None, 2048) == "google/flan-t5-xl"
    assert encoder_name(tmp_path, None, FEATURES) is None
    (tmp_path / "flan-t5-xl").mkdir()
    assert encoder_name(tmp_path, None, 2048) == str(tmp_path / "flan-t5-xl")
    assert encoder_name(tmp_path, "other/encoder", 2048) == "other/encoder"


# --- images from end to end ---


def test_an_image_is_drawn_from_a_caption(drawing: pardec.Model, tmp_path: Path) -> None:
    pipe = pardec.ImagePipeline(drawing)  # with the defaults of the authors' script
    pipe(["a large red circle", "a small blue square"], num_images_per_prompt=2, generator=torch.Generator())
    result = pipe.result
    assert [image.size for image in result.images] == [(32, 32)] * 4
    assert len({image.tobytes() for image in result.images}) == 4
    assert (result.nfe, result.forward_rows) == ([7] * 4, [14] * 4)
    assert (result.sides, len(result.tokens[0])) == ((1, 2, 4, 6, 8, 12, 16), TOKENS)
    assert result.shown == ["a large red circle"] * 2 + ["a small blue square"] * 2
    assert result.settings == {"temperature": 0.5, "top_k": None, "top_p": 0.97, "cfg": 4.0}
    assert "order=temperature" in str(result.spec)
    loaded = pardec.Result.load(result.save(tmp_path / "result"))
    assert (loaded.tokens, loaded.sides, loaded.seeds) == (result.tokens, result.sides, result.seeds)
    (tmp_path / "image.png").write_bytes(pardec.pngs.png(result.images[2], pardec.pngs.of_result(result, 2)))
    again = drawing.generate(**pardec.pngs.generate_arguments(pardec.pngs.read(tmp_path / "image.png")))
    assert again.tokens[0] == result.tokens[2]


def test_features_take_the_place_of_a_caption(drawing: pardec.Model) -> None:
    features = drawing.network.imaging.texts([Condition(text="a red circle")], [])  # type: ignore[attr-defined]
    own = drawing.generate(prompt_embeds=features, seed=[4])
    assert own.tokens == drawing.generate("a red circle", seed=[4]).tokens
    assert own.shown == [None]


def test_guidance_of_one_is_none(drawing: pardec.Model) -> None:
    none, one, some = (drawing.generate("a red circle", seed=[4], cfg=cfg) for cfg in (None, 1, 1.5))
    assert none.tokens == one.tokens != some.tokens
    assert (one.settings["cfg"], one.forward_rows, some.forward_rows) == (None, [7], [14])
    away = drawing.generate("a red circle", seed=[4], cfg=1.5, negative_prompt="a blue square")
    assert away.tokens != some.tokens


def test_a_request_has_a_size(drawing: pardec.Model) -> None:
    result = drawing.generate("a red circle", size=(64, 64), cfg=1, seed=[2])
    assert result.images[0].size == (64, 64)
    assert (result.sides, result.nfe) == ((1, 2, 4, 6, 8, 12, 16, 20, 24, 32), [10])
    assert result.settings["size"] == [64, 64]
    assert drawing.generate("a red circle", size=(32, 32), seed=[2]).nfe == [7]
    for size in ((32, 64), (48, 48)):
        with pytest.raises(ArgumentError, match="draws squares of 32, 64, 96, 128 pixels"):
            drawing.generate("a red circle", size=size)


def test_maps_so_far_are_decoded_alone(model: ScaleModel) -> None:
    codes = torch.from_numpy(run(model).tokens)
    coarse = codes.clone()
    coarse[1, 5:] = -1
    quantizer = model.quantizer
    total = quantizer.add(quantizer.add(quantizer.start(1), codes[1:, :1], 0), codes[1:, 1:5], 1)
    decoder = load_decoder(model.path or "")
    assert torch.allclose(model.imaging.decode(coarse)[1], decoder(total)[0], atol=1e-4)
    assert torch.allclose(model.imaging.decode(coarse)[0], model.imaging.decode(codes[:1])[0], atol=1e-5)
    with pytest.raises(ModelError, match="code 64 lies outside the codebook of 64"):
        model.imaging.decode(torch.full((1, TOKENS), 64))


def test_other_samplers_of_maps_draw(model: ScaleModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = run(model, cfg=3.0)
    assert np.array_equal(run(model, "fastvar:keep=1,order=temperature", cfg=3.0).tokens, own.tokens)
    pruned = run(model, "fastvar:order=temperature", cfg=3.0)
    assert np.array_equal(pruned.tokens[:, :121], own.tokens[:, :121])
    assert sum(pruned.tokens_fed) < sum(own.tokens_fed)
    spec = "code:refiner=small,steps=3,order=temperature"
    refined = run(model, spec, cfg=3.0, refiner=load_scales(folder, device="cpu", dtype="float32"))
    assert np.array_equal(refined.tokens, own.tokens)
    assert refined.nfe == (3, 3)
    large: dict[str, Any] = {"size": (64, 64), "source": Keyed((5, 6))}
    refined = run(model, spec, **large, refiner=load_scales(folder, device="cpu", dtype="float32"))
    assert np.array_equal(refined.tokens, run(model, **large).tokens)


# --- refusals ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no prompt is given"),
        ({"label": 1}, "draws captions and has no classes"),
        ({"prompt": "a red circle", "top_k": 900}, "top_k=900, and infinity has 2 values of each bit"),
        (
            {"prompt": "a red circle", "sampler": "sequential:top_ks=3"},
            "top_ks has 3, and infinity has 2 values of each",
        ),
        ({"prompt": "a red circle", "sampler": "sequential:cfgs=-1"}, "cfgs has the entry '-1'"),
        ({"prompt": "a red circle", "negative_prompt": "x", "cfg": 1}, "negative_prompt needs guidance"),
        ({"prompt": "a red circle", "sampler": "sjd"}, "'sjd' is for"),
    ],
)
def test_requests_are_refused_before_the_first_forward(
    drawing: pardec.Model, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        drawing.generate(**arguments)


def test_captions_that_cannot_be_read_are_refused(model: ScaleModel) -> None:
    for features in (torch.zeros(LONGEST + 1, FEATURES), torch.zeros(3, 5), torch.zeros(0, FEATURES)):
        with pytest.raises(ModelError, match="features of row 0 have the shape"):
            run(model, conditions=(Condition(features=features),))
    with pytest.raises(ModelError, match="has no text encoder"):
        run(model, conditions=(Condition(text="a red circle"),))
    with pytest.raises(ModelError, match="row 0 has no caption"):
        run(model, conditions=(Condition(label=3),))


def damaged(folder: Path, **changes: Any) -> Path:
    tensors = files.transformer()
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    return files.folder(folder, tensors=tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head__bias": None}, "1 of .* tensors are missing: head.bias"),
        ({"cfg_uncond": None}, "does not hold an Infinity model of images: there is no cfg_uncond"),
        ({"block_chunks__0__module__0__ca_gamma": torch.ones(32)}, "belong to no part of the model: block_chunks.0"),
        ({"head__weight": torch.zeros(64, 32)}, "a head of 64 outputs for codes of 6 bits"),
        ({"word_embed__weight": torch.zeros(32, 56)}, "codes of 56 bits: Infinity-8B"),
        ({"lvl_embed__weight": torch.zeros(5, 32)}, "embeddings of 5 maps, and images of 0.06M pixels have 7"),
        ({"block_chunks__1__module__1__sa__zero_k_bias": torch.ones(32)}, "sa.zero_k_bias is not zero"),
        ({"pos_start": torch.zeros(1, 1, 31)}, r"pos_start has shape \[1, 1, 31\], expected \[1, 1, 32\]"),
        ({"block_chunks__0__module__0__sa__scale_mul_1H11": torch.zeros(1, 3, 1, 1)}, "3 heads over a width of 32"),
    ],
)
def test_tensors_of_another_layout_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_any(damaged(tmp_path, **changes), device="cpu")


def test_a_bit_without_a_distribution_is_found(tmp_path: Path) -> None:
    tensors = files.transformer()
    tensors["head.bias"][4:6] = -torch.inf  # both values of the third bit
    own = load_scales(files.folder(tmp_path, tensors=tensors), device="cpu", dtype="float32")
    with pytest.raises(ModelError, match="logits that are not finite: its weight head.bias holds"):
        run(own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 32}, "depth is 32 in the config, and 4 in the tensors"),
        ({"embed_dim": 2048}, "embed_dim is 2048 in the config, and 32 in the tensors"),
        ({"vae_type": 32}, "vae_type is 32 in the config, and 6 in the tensors"),
        ({"pn": "4M"}, "pn is '4M'"),
        ({"apply_spatial_patchify": 1}, "apply_spatial_patchify=1 is not supported"),
        ({"rope2d_normalized_by_hw": 1}, "rope2d_normalized_by_hw=1 is not supported"),
        ({"cfg_insertion_layer": -5}, "cfg_insertion_layer=-5 is not supported"),
        ({"h_div_w_template": 1.5}, "h_div_w_template=1.5 is not supported"),
        ({"video_frames": 81}, "video_frames=81 is not supported"),
        ({"depht": 4}, "unknown key depht=4"),
        ({"enable_positive_prompt": 1}, "enable_positive_prompt=1 is not supported"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    files.folder(tmp_path)
    (tmp_path / "infinity_2b_reg.args.json").write_text(json.dumps(arguments))
    if "pn" in arguments:
        (tmp_path / "args.json").unlink()
    for refuses in (describe, lambda path: load_any(path, device="cpu")):
        with pytest.raises(ModelError, match=message):
            refuses(tmp_path)


def test_arguments_of_the_authors_script_are_followed(tmp_path: Path) -> None:
    files.folder(tmp_path, pn=None)
    (tmp_path / "infinity_vae_d32reg.pth").rename(tmp_path / "other.pth")
    stated = {"pn": "0.06M", "cfg": "3", "tau": 0.7, "vae_path": "weights/other.pth", "save_file": "tmp.jpg"}
    (tmp_path / "args.json").write_text(json.dumps(stated | {"text_encoder_ckpt": "weights/t5", "model_path": "x.pth"}))
    imaging = load_scales(tmp_path, device="cpu").imaging
    assert (imaging.defaults["cfg"], imaging.defaults["temperature"], imaging.defaults["top_p"]) == (3.0, 0.7, 0.97)
    assert imaging.can_decode
    (tmp_path / "generation_config.json").write_text(json.dumps({"cfg": 2.0}))
    assert load_scales(tmp_path, device="cpu").imaging.defaults["cfg"] == 2.0
    (tmp_path / "args.json").write_text(json.dumps(stated | {"cfg": "3,2"}))
    with pytest.raises(ModelError, match="cfg is '3,2'"):
        load_scales(tmp_path, device="cpu")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    files.folder(tmp_path)
    one = torch.zeros(1, TOKENS, dtype=torch.int64)
    other = tmp_path / "infinity_vae_other.pth"
    for tensors, message in (
        (files.decoder(bits=5), "has codes of 5 bits, but those of infinity_2b_reg have 6"),
        ({"encoder.conv_in.conv.weight": torch.zeros(1, 3, 3, 3)}, "there is no decoder.conv_in.weight"),
        ({**files.decoder(), "decoder.conv_in.conv.weight": torch.zeros(64, 6, 3, 3, 3)}, "a tokenizer of video"),
        ({**files.decoder(), "decoder.mid.attn_1.q.conv.weight": torch.zeros(64, 64, 1, 1)}, "mid.attn_1.q"),
    ):
        torch.save({"vae": tensors}, other)
        model = load_scales(tmp_path / "infinity_2b_reg.pth", device="cpu", decoder=other)
        with pytest.raises(ModelError, match=message):
            model.imaging.decode(one)
    with pytest.raises(ModelError, match="no bitwise image tokenizer"):
        load_scales(tmp_path / "infinity_2b_reg.pth", device="cpu", decoder=tmp_path / "absent.pth")
    for file in tmp_path.glob("infinity_vae*"):
        file.unlink()
    alone = load_scales(tmp_path, device="cpu", dtype="float32")
    assert not alone.imaging.can_decode
    assert alone.imaging.downsample == 16
    with pytest.raises(ModelError, match="has no image tokenizer"):
        alone.imaging.decode(one)


@pytest.mark.parametrize("argument", [{"tp": True}, {"quantize": "int8"}, {"mask_id": 3}, {"cuda_graphs": True}])
def test_arguments_of_other_models_are_refused(folder: Path, argument: dict[str, Any]) -> None:
    with pytest.raises(PardecError):
        load_any(folder, device="cpu", **argument)


def test_weights_are_not_replaced_in_place(model: ScaleModel) -> None:
    with pytest.raises(ModelError, match="cannot be replaced in place"):
        load_weights(model, files.transformer())
