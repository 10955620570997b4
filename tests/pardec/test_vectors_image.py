"""`pardec image`, its preview and the pipeline object, on models whose tokens are vectors."""

from __future__ import annotations

import io
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pardec
from pardec.images import pngs
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.catalog import embedded_names
from pardec.requests.images import with_defaults
from pardec.samplers.events import Sampled
from pardec.views.preview import Preview
from pardec.views.unfinished import BLANK, Codes, unfinished
from tests.pardec.terminals import Terminal
from tests.pardec.vector_painters import CLASSES, DEFAULTS, SIDE, SIZE, vector_painter

Cli = Callable[..., tuple[int, str, str]]
STEPS = "mar:steps=5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vector_painter(tmp_path_factory.mktemp("painters") / "vectors", sampler="mar:steps=3")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vector_painter(tmp_path_factory.mktemp("painters") / "bare", channels=None)


@pytest.fixture(scope="module")
def pipe(folder: Path) -> pardec.ImagePipeline:
    return pardec.ImagePipeline.from_pretrained(folder, device="cpu")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def near(one: Image.Image, other: Image.Image) -> bool:
    """The same image, but for rounding."""
    left, right = (np.asarray(each.convert("RGB")).astype(int) for each in (one, other))
    return left.shape == right.shape and bool(np.abs(left - right).max() <= 2)


# --- the command ---


def test_the_command_uses_the_checkpoint_s_defaults_and_its_file_reproduces_it(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    out, saved = tmp_path / "out.png", tmp_path / "run"
    code, output, err = cli(
        "image", folder, "--class", 3, "--class", -1, "--grid", "2x2", "-o", out, "--save", saved, "--json"
    )
    assert (code, err.splitlines()[-1].startswith("4 images, 64 tokens in 12 forwards")) == (0, True), err
    record = pngs.read(out)
    assert record["spec"].startswith("mar:steps=3,")
    assert {name: record[name] for name in DEFAULTS} == DEFAULTS
    assert [one["class"] for one in record["pictures"]] == [3, 3, -1, -1]
    document = json.loads(output)
    assert document["settings"] == DEFAULTS
    assert set(document["timing"]["parts"]) == {"backbone", "head"}
    assert (document["timing"]["drafted"], document["timing"]["accepted"]) == (0, 0)
    assert re.search(r" s \(backbone \d+\.\d s, head \d+\.\d s\)$", err.splitlines()[-1])
    again = pardec.load(record["loaded"]["name"], device="cpu").generate(**pngs.generate_arguments(record)).images
    assert near(Image.open(out), pngs.sheet(again, (2, 2)))
    loaded = pardec.Result.load(saved)
    assert loaded.latents.shape == (4, SIDE, SIDE, SIZE)
    one = record["pictures"][2]
    flags = ("--class", one["class"], "--seeds", one["seed"], "-s", record["spec"], "-o", tmp_path / "one.png")
    assert cli("image", folder, *flags, "--quiet")[:2] == (0, "")
    assert near(Image.open(tmp_path / "one.png"), again[2])
    code, _, _ = cli("view", saved, "--html", tmp_path / "a.html", "--png", tmp_path / "a.png")
    assert code == 0
    assert "no class | seed" in cli("view", saved)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("--class", CLASSES), 2, f"label {CLASSES} is not a class", f"0..{CLASSES - 1}, and -1 is none"),
        (("-p", "a circle"), 2, "draws classes and cannot read captions", "--class N"),
        (("--class", 1, "--top-k", 3), 2, "--top-k is for tokens with ids", "leave --top-k out"),
        (("--class", 1, "-s", "sjd"), 2, "not for models whose tokens are vectors", "--family continuous"),
    ],
)
def test_refused_before_the_first_forward(
    cli: Cli,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Any,
    code: int,
    message: str,
    hint: str,
) -> None:
    monkeypatch.setattr("pardec.samplers.continuous.loop.decode", lambda *_, **__: pytest.fail("a forward was made"))
    status, out, err = cli("image", folder, *arguments, "-o", tmp_path / "out.png", "--quiet")
    lines = err.splitlines()
    assert (status, out, len(lines)) == (code, "", 2), err
    assert message in lines[0]
    assert hint in lines[1]


def test_a_drafting_sampler_says_what_was_accepted(cli: Cli, folder: Path, tmp_path: Path) -> None:
    spec = f'cspd:draft="{folder}",k=2,steps=8'
    flags = ("--class", 1, "--num-images", 3, "--batch-size", 2, "-s", spec, "-o", tmp_path / "out.png", "--json")
    code, output, err = cli("image", folder, *flags)
    assert code == 0, err
    timing = json.loads(output)["timing"]
    assert set(timing["parts"]) == {"backbone", "head", "draft backbone", "draft head"}
    assert 0 < timing["accepted"] < timing["drafted"]
    assert f", {timing['accepted']} of {timing['drafted']} drafts accepted, " in err
    assert sum(timing["parts"].values()) < timing["total_s"]


def test_other_commands_say_what_to_use(cli: Cli, folder: Path, bare: Path, tmp_path: Path) -> None:
    code, _, err = cli("generate", folder, "-p", "a")
    assert (code, "is an image model" in err, "pardec image" in err) == (2, True, True)
    code, _, err = cli("tune", folder, "--task", "classes", "--quiet")
    assert (code, "vectors draws vectors, and tune searches" in err, "pardec compare" in err) == (2, True, True)
    code, _, err = cli("image", bare, "--class", 1, "-o", tmp_path / "out.png", "--quiet")
    assert (code, "so its vectors cannot be decoded to images" in err, "--decoder FILE" in err) == (
        1,
        True,
        True,
    )


def test_samplers_of_vectors_are_listed(cli: Cli) -> None:
    listed = json.loads(cli("list", "samplers", "--family", "continuous", "--json")[1])
    assert {"mar", "sequential"} <= {entry["name"] for entry in listed}
    assert {entry["stage"] for entry in listed} == {"vectors"}
    code, _, err = cli("list", "samplers", "--family", "vectors")
    assert (code, "families: masked, ar, continuous, scales" in err) == (2, True)
    assert cli("show", "mar")[1].startswith("mar (vectors stage, continuous models)")
    both = cli("show", "sequential")[1]
    for head in ("select stage, masked", "draft stage, ar", "vectors stage, continuous"):
        assert f"sequential ({head} models)" in both
    assert [entry["family"] for entry in json.loads(cli("show", "sequential", "--json")[1])] == [
        "masked", "ar", "continuous", "scales",
    ]  # fmt: skip


def test_the_script_compares_samplers_of_vectors(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = str(Path(__file__).resolve().parents[2] / "scripts" / "generate_image.py")
    options = ("--model", str(folder), "--class", "1", "--images", "2", "--out", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [script, *options])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    out, err = capfd.readouterr()
    assert (ended.value.code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["sequential", "mar:steps=64", "mar:steps=16", "mar:steps=16,head=25"]
    assert [line.split()[1] for line in lines] == ["32", "32", "32", "32"]  # two images of 16 tokens, one per forward
    assert all(re.search(r"s, backbone \d+\.\d\d s, head \d+\.\d\d s  distribution$", line) for line in lines)
    assert len(list(tmp_path.glob("*.png"))) == 4


# --- unfinished images ---


def test_vectors_are_collected_from_events(pipe: pardec.ImagePipeline) -> None:
    codes = Codes(pipe.imaging.layout)
    result = pipe.model.generate(label=[1, 2], sampler=STEPS, seed=[3, 4])
    last = 0
    for event in pipe.model.stream(label=[1, 2], sampler=STEPS, seed=[3, 4]):
        codes(event)
        assert codes.known >= last
        last = codes.known
        if isinstance(event, Sampled):
            assert int(codes.fresh.sum()) == int(event.committed.sum())
            there = torch.from_numpy(codes.codes >= 0).view(2, SIDE, SIDE)
            assert torch.equal(codes.tensor()[there], result.latents[there])
            assert (codes.latents[codes.codes < 0] == 0).all()
            (first, _) = unfinished(pipe.imaging, codes.codes, codes.latents)
            side = first.height // SIDE
            middle = np.asarray(first)[side // 2 :: side, side // 2 :: side]
            assert np.array_equal((middle == BLANK).all(2), ~there[0].numpy())
    assert torch.equal(codes.tensor(), result.latents)


def test_the_preview_draws_vectors(pipe: pardec.ImagePipeline, colours: None) -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream, options in ((terminal, {}), (log, {"every": 0.0})):
        with Preview(pipe.imaging, 2, stream, environment={}, **options) as preview:
            for event in pipe.model.stream(label=[1, 2], sampler=STEPS):
                preview(event)
    assert "▀" in terminal.getvalue()
    assert "32 of 32 tokens, 5 forwards" in terminal.getvalue()
    assert re.match(r"\d+ of 32 tokens, 1 forward", log.getvalue())


# --- the pipeline ---


def test_the_pipeline_draws_vectors(pipe: pardec.ImagePipeline) -> None:
    shape: dict[str, Any] = {"class_labels": [2, 0], "guidance_scale": 3.0, "temperature": 0.8}
    outs = {kind: pipe(**shape, generator=seeded(5), output_type=kind).images for kind in ("pil", "np", "pt", "latent")}
    assert pipe.result.spec.startswith("mar:steps=3,")  # the checkpoint's own
    seeds = torch.randint(2**62, (2,), generator=seeded(5)).tolist()
    plain = pipe.model.generate(label=[2, 0], cfg=3.0, temperature=0.8, seed=seeds, sampler="mar:steps=3")
    assert plain.latents is not None
    assert [one.tobytes() for one in outs["pil"]] == [one.tobytes() for one in plain.images]
    assert outs["latent"].dtype == torch.float32
    assert torch.equal(outs["latent"], plain.latents)
    assert np.array_equal(outs["np"], outs["pt"].permute(0, 2, 3, 1).numpy())
    assert np.abs(outs["np"] * 255 - np.stack([np.asarray(one) for one in outs["pil"]])).max() <= 0.5 + 1e-3


def test_inference_steps_are_mar_s(pipe: pardec.ImagePipeline) -> None:
    pipe(class_labels=1, num_inference_steps=7, generator=seeded(0), output_type="latent")
    assert (pipe.result.spec, pipe.result.nfe) == (
        "mar:steps=7,guidance=linear,last=map,head=none,head_to=none,order=random,uncond_every=1,decoder_every=1,head_every=1,warmup=5,margin=15,layer=3",
        [7],
    )
    with pytest.raises(SpecError, match="num_inference_steps=7 cannot be combined with sampler="):
        pipe(class_labels=1, num_inference_steps=7, sampler=STEPS)
    codes = pardec.ImagePipeline("tiny-llamagen")
    with pytest.raises(SpecError, match="num_inference_steps must be a whole number of at least 1, got 0"):
        pipe(class_labels=1, num_inference_steps=0)
    with pytest.raises(SpecError, match="num_inference_steps=7 works with mar only"):
        codes("a small red circle on grey", num_inference_steps=7)


def test_the_callback_sees_vectors_and_may_stop(pipe: pardec.ImagePipeline) -> None:
    calls: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def look(pipe: Any, step: int, timestep: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        calls.append((timestep, tensors["latents"], tensors["committed"]))
        pipe._interrupt = stopping and step == 1
        return tensors

    shape: dict[str, Any] = {"class_labels": [0, 1], "sampler": STEPS, "callback_on_step_end": look}
    shape |= {"callback_on_step_end_tensor_inputs": ["latents", "committed"]}
    stopping = False
    whole = pipe(**shape, generator=seeded(2), output_type="latent").images
    known = torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
    for timestep, latents, committed in calls:
        assert not (known & committed).any()
        known |= committed
        assert torch.equal(latents[known], whole[known])
        assert timestep == SIDE**2 - int(known[0].sum())
    assert known.all()
    calls.clear()
    stopping = True
    partial = pipe(**shape, generator=seeded(2), output_type="latent").images
    known = calls[0][2] | calls[1][2]
    assert pipe.result is None
    assert torch.equal(partial[known], whole[known])
    assert (partial[~known] == 0).all()
    image = np.asarray(pipe(**shape, generator=seeded(2)).images[0])
    side = image.shape[0] // SIDE
    assert np.array_equal((image[side // 2 :: side, side // 2 :: side] == BLANK).all(2), ~known[0].numpy())

    def write(pipe: Any, step: int, timestep: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"latents": tensors["latents"] + 1}

    with pytest.raises(SpecError, match="changes latents"):
        pipe(class_labels=1, callback_on_step_end=write)


def test_vectors_need_no_decoder_and_images_do(bare: Path) -> None:
    pipe = pardec.ImagePipeline(bare)
    assert pipe(class_labels=1, output_type="latent", sampler=STEPS).images.shape == (1, SIDE, SIDE, SIZE)
    with pytest.raises(ModelError, match="bare has no autoencoder") as caught:
        pipe(class_labels=1)
    assert "decoder=FILE, its autoencoder" in str(caught.value.hint)


@pytest.mark.skipif("tiny-mar" not in embedded_names(), reason="the embedded model of vectors is being trained")
def test_the_embedded_model_draws_its_classes(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    fast = ("-s", "mar:steps=4,head=10")  # whether they are right is looked at below
    code, _, err = cli("image", "tiny-mar", "--class", 3, "--num-images", 2, "--grid", "1x2", *fast, "-o", out)
    assert (code, Image.open(out).size) == (0, (2 * 48 + pngs.GAP, 48)), err
    assert "tiny-mar" in cli("list", "models")[1]
    samplers = ["mar:steps=24,head=50", "cspd:draft=tiny-mar-draft,k=8,steps=24,head=50"]
    plain, drafted = pardec.compare("tiny-mar", "classes", samplers, limit=1, device="cpu").rows
    assert plain["nfe"] == 24
    assert drafted["nfe"] <= 12
    assert all(row["failed"] == 0 and row["lenient"] > 0.5 for row in (plain, drafted))


def test_the_checkpoint_s_sampler_is_the_default_of_generate_too(folder: Path) -> None:
    model = pardec.load(folder, device="cpu")
    assert str(model.generate(label=[1]).spec).startswith("mar:steps=3,")
    assert str(model.generate(label=[1], sampler=STEPS).spec).startswith(STEPS)


def test_a_guidance_below_one_in_the_files_is_the_same_in_the_pipeline(folder: Path, tmp_path: Path) -> None:
    model = pardec.load(vector_painter(tmp_path / "own", cfg=0.5, sampler="mar:steps=3"), device="cpu")
    pipe = pardec.ImagePipeline(model)
    pipe(class_labels=[1], generator=seeded(0), output_type="latent")
    assert pipe.result.settings["cfg"] == with_defaults(model.imaging, {})["cfg"] == 0.5  # type: ignore[arg-type]
    pipe(class_labels=[1], generator=seeded(0), output_type="latent", guidance_scale=0.5)  # as in diffusers
    assert pipe.result.settings["cfg"] is None
