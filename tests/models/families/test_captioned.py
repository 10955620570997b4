"""Lumina-DiMOO and MMaDA: recognized and loaded from published folders; a missing part is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pardec
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.families import match
from pardec.models.images.dimoo import NEWLINE
from pardec.models.images.magvit import load_magvit
from pardec.models.load import load
from pardec.models.loading.kinds import kind_of
from tests.models.captioned_folders import CODES, CONFIGS, FIRST, SIDE, folder, magvit_tensors, tensors, vq
from tests.reference import naive_kl

BOTH = pytest.mark.parametrize("family", CONFIGS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("captioned")
    return lambda family: root / family if (root / family).is_dir() else folder(root / family, family)


@BOTH
def test_the_config_tells_the_family(family: str) -> None:
    spec = match(CONFIGS[family])
    assert spec.name == family
    plain = {name: value for name, value in CONFIGS[family].items() if name != "architectures"} | {
        "model_type": "llada", "architectures": ["LLaDAModelLM"],
    }  # fmt: skip
    other = match(plain)
    assert other.name == "llada"


@BOTH
def test_it_draws_and_writes(family: str, path: Callable[[str], Path]) -> None:
    kind = kind_of(path(family))
    assert (kind.family, kind.draws, kind.writes) == ("masked", "text", True)
    model = pardec.load(path(family), device="cpu")
    done = model.generate(
        ["a cat", "two dogs in a row"], sampler="maskgit:steps=3,noise=1", temperature=1.0, cfg=2.0, seed=3
    )
    assert [image.size for image in done.images] == [(2 * SIDE, 2 * SIDE)] * 2
    assert done.generated == [SIDE**2] * 2
    assert done.nfe == [3, 3]
    assert done.grid == (SIDE, SIDE)
    writer = pardec.load(path(family), device="cpu", images=False)
    assert writer.imaging is None
    assert writer.generate("a cat", max_new_tokens=4, stop_ids=[]).generated == [4]


@BOTH
def test_shards_are_the_same_model(family: str, path: Callable[[str], Path], tmp_path: Path) -> None:
    whole, parts = load(path(family)), load(folder(tmp_path / family, family, sharded=True))
    one, other = (dict(each.decoder.named_parameters()) for each in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@BOTH
@pytest.mark.parametrize("damage", ["missing", "surplus", "depth"])
@pytest.mark.covers(1)
def test_other_tensors_are_refused_by_name(family: str, damage: str, tmp_path: Path) -> None:
    root, own = folder(tmp_path / family, family), tensors(family)
    name = "model.transformer.blocks.1.q_proj.weight"
    if damage == "missing":
        del own[name]
    elif damage == "surplus":
        own["model.transformer.blocks.1.extra"] = torch.zeros(2)
    else:
        own = {key: value for key, value in own.items() if ".blocks.1." not in key}
    save_file(own, root / "model.safetensors")
    with pytest.raises(ModelError, match=r"blocks\.1\."):
        load(root)


@BOTH
def test_without_an_image_tokenizer_codes_are_drawn_and_not_decoded(family: str, tmp_path: Path) -> None:
    model = pardec.load(folder(tmp_path / family, family, decoder=False), device="cpu")
    assert model.generate("a cat", sampler="maskgit:steps=2").images is None
    with pytest.raises(ModelError, match="has no image tokenizer"):
        model.imaging.decode(torch.zeros(1, SIDE, SIDE, dtype=torch.int64))


def test_an_image_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    vq().save_pretrained(tmp_path / "other" / "vqvae")
    torch.save(magvit_tensors(), tmp_path / "magvit.bin")
    for family, decoder in (("lumina_dimoo", tmp_path / "other"), ("mmada", tmp_path / "magvit.bin")):
        model = load(folder(tmp_path / family, family, decoder=False), decoder=decoder)
        assert model.imaging.downsample == 2
    with pytest.raises(ModelError, match="holds no VQ model"):
        load(tmp_path / "lumina_dimoo", decoder=tmp_path / "mmada")


@BOTH
def test_a_folder_without_a_tokenizer_is_refused(family: str, tmp_path: Path) -> None:
    root = folder(tmp_path / family, family)
    for file in root.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="has no tokenizer, which captions need"):
        load(root)


def test_a_codebook_of_another_size_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "mmada", "mmada")
    config = CONFIGS["mmada"] | {"codebook_size": 8}
    (root / "config.json").write_text(json.dumps(config))
    imaging = load(root).imaging
    with pytest.raises(ModelError, match=r"has 8 codes, and its image tokenizer has 16"):
        _ = imaging.downsample
    (root / "config.json").write_text(json.dumps(config | {"codebook_size": 2**20}))
    with pytest.raises(ModelError, match="ids, too few for"):
        load(root)


def test_the_layouts(path: Callable[[str], Path]) -> None:
    dimoo, mmada = (load(path(family)).imaging for family in CONFIGS)
    forced = dimoo.layout.forced().tolist()
    assert forced == [*([-1] * SIDE + [NEWLINE]) * SIDE, 126350, 126355]
    assert dimoo.layout.ids.tolist() == list(range(FIRST, FIRST + CODES))
    assert mmada.layout.forced().tolist() == [-1] * SIDE**2 + [126085]
    assert int(mmada.layout.ids[0]) == len(mmada.tokenizer)  # type: ignore[attr-defined]


def test_the_prompts(path: Callable[[str], Path]) -> None:
    dimoo, mmada = (load(path(family)).imaging for family in CONFIGS)
    words = dimoo.tokenizer  # type: ignore[union-attr]
    text = "<system>Generate an image according to the text prompt.</system><user>{}</user>"
    for caption, shown in (("a cat", "a cat"), (None, "<uncondition>")):
        expected = words(text.format(shown))["input_ids"]
        assert dimoo.ids(caption) == [*expected, 126354, 126349]  # type: ignore[union-attr]
    begin, end = words.bos_token_id, words.eos_token_id
    assert mmada.ids(None) == [126088, begin, end, 126084]  # type: ignore[union-attr]
    cat = words("a cat")["input_ids"]
    assert cat[0] == begin
    assert mmada.ids("a cat") == [126088, *cat, end, 126084]  # type: ignore[union-attr]
    long = mmada.ids("cat " * 600)  # type: ignore[union-attr]
    assert len(long) == 514
    assert long[-2:] == [end, 126084]


def test_sizes(path: Callable[[str], Path]) -> None:
    model = pardec.load(path("lumina_dimoo"), device="cpu")
    done = model.generate("a cat", sampler="maskgit:steps=2", size=(4, 8))
    assert done.images[0].size == (8, 4)
    assert done.grid == (2, 4)
    with pytest.raises(ArgumentError, match="5 by 8 pixels"):
        model.generate("a cat", size=(5, 8))
    with pytest.raises(ArgumentError, match="draws images of 6 by 6"):
        pardec.load(path("mmada"), device="cpu").generate("a cat", size=(4, 8))


def test_interval_guidance_is_refused(path: Callable[[str], Path]) -> None:
    with pytest.raises(pardec.SpecError, match="fills an image in any order"):
        pardec.load(path("mmada"), device="cpu").generate("a cat", cfg=2.0, cfg_interval=3)


@pytest.mark.parametrize("blocks", [(2, 1), (1, 3, 2)])
def test_magvit_computes_what_its_published_tensors_say(blocks: tuple[int, ...], tmp_path: Path) -> None:
    own = magvit_tensors((32, 64, 64)[: len(blocks)], blocks)
    torch.save(own, tmp_path / "magvit.bin")
    model = load_magvit(tmp_path / "magvit.bin")
    assert model.shape.blocks == blocks
    codes = torch.randint(16, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    own |= {f"post_quant_conv.{part}": own[f"decoder.post_quant_conv.{part}"] for part in ("weight", "bias")}
    wanted = naive_kl.pixels(own, model.vectors(codes), len(blocks))
    torch.testing.assert_close(model.decode(codes), wanted, rtol=1e-4, atol=1e-4)


def test_magvit_decodes_bits(tmp_path: Path) -> None:
    """Decoding each code alone equals running the decoder on the vector of the code's bits."""
    torch.save(magvit_tensors(), tmp_path / "magvit.bin")
    model = load_magvit(tmp_path / "magvit.bin")
    codes = torch.tensor([[[0, 5], [10, 15]]])
    bits = torch.tensor([[-1, -1, -1, -1], [-1, 1, -1, 1], [1, -1, 1, -1], [1, 1, 1, 1]]).float()
    expected = model.decoder(model.post_quant_conv(bits.T.reshape(1, 4, 2, 2)))
    torch.testing.assert_close(model.decode(codes), expected)
    with pytest.raises(ModelError, match="code 16 lies outside"):
        model.decode(codes + 1)
    damaged = magvit_tensors()
    del damaged["decoder.mid.attn_1.q.weight"]
    torch.save(damaged, tmp_path / "magvit.bin")
    with pytest.raises(ModelError, match=r"attn_1\.q"):
        load_magvit(tmp_path / "magvit.bin")
    save_file({"other": torch.zeros(1)}, tmp_path / "magvit.safetensors")
    assert load_file(tmp_path / "magvit.safetensors")
    with pytest.raises(ModelError, match="not the weights of a MAGVIT"):
        load_magvit(tmp_path / "magvit.safetensors")
