"""The training that `scripts/gpu_queue` runs: masks and shift are the family's own, and resuming is bit-equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_runs import difference, entropy, feedback, smollm2
from gpu_runs.export import write as write_folder
from gpu_runs.llama import Weights, states
from gpu_runs.texts import Texts, _Decoder, packed, views, write
from gpu_runs.training import Recipe, Training, block_loss, block_states, masked_by, tiny
from text_training.block_diffusion import streams
from torch import Tensor

import pardec
from pardec.models.plan import Plan

BLOCK = 8
RECIPE = Recipe(total=1e6, rate=3e-3, warmup=4, rows=4, length=64, block=BLOCK)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts() -> Texts:
    """Answers that repeat a pattern, which can be learned."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        first, count = int(rng.integers(5, 30)), int(rng.integers(6, 20))
        answer = [first + (index % 4) for index in range(count)]
        rows.append(([1, 9, 3, *rng.integers(5, 30, int(rng.integers(1, 9))).tolist(), 2, 3, 1, 8], [*answer, 2]))
    return Texts.of(rows)


def training(texts: Texts, dtype: torch.dtype = torch.bfloat16) -> Training:
    shape, template, base = tiny()
    return Training(shape, base, texts, template, RECIPE, CPU, dtype)


def rows_of(texts: Texts) -> dict[str, Tensor]:
    rows = packed(texts, RECIPE.length, BLOCK, 2, np.arange(len(texts)))
    rows["masked"] = masked_by(rows, BLOCK, np.random.default_rng(0))
    return {name: torch.from_numpy(values) for name, values in rows.items()}


def export(folder: Path, shape: smollm2.Shape, tensors: dict[str, Tensor], mask: int) -> pardec.Model:
    """The weights as a folder in Fast-dLLM v2's format."""
    write_folder(folder, shape, tensors, {"mask": mask, "end": 2}, BLOCK)
    return pardec.load(folder, device="cpu", dtype="float32")


def test_views_are_those_of_two_separate_copies() -> None:
    """A view and the clean tokens have the same logits as in a forward of that view alone."""
    length = 3 * BLOCK
    visible, _ = streams(length, BLOCK)  # [noisy, clean]
    of_view, of_clean = views({"doc": torch.zeros(1, length), "block": torch.arange(length)[None] // BLOCK})
    assert torch.equal(of_view[0], visible[:length])
    assert torch.equal(of_clean[0], visible[length:, length:])
    assert not visible[length:, :length].any()


def test_masks_and_shift_are_those_of_the_family(texts: Texts, tmp_path: Path) -> None:
    """The predictions of each block equal those of pardec's block-causal forward of the view that masks the token."""
    shape, template, base = tiny()
    base = {name: values * 3 if values.dim() > 1 else values for name, values in base.items()}
    network = export(tmp_path / "model", shape, base, template["mask"]).language_model
    assert (network.family, network.decoding_config.shift, network.decoding_config.block) == ("fast_dllm_v2", 1, BLOCK)
    inputs = {name: values[:2] for name, values in rows_of(texts).items()}
    weights = Weights(shape, base, CPU, torch.float32)
    with torch.no_grad():
        found = block_states(weights, inputs, template["mask"], BLOCK) @ base["model.embed_tokens.weight"].T
    compared = 0
    for row in range(2):
        for doc in range(int(inputs["doc"][row].max()) + 1):
            at = (inputs["doc"][row] == doc).nonzero().flatten()
            clean, first, answer = (inputs[name][row, at] for name in ("ids", "masked", "answer"))
            for mask in (first, answer & ~first):
                for start in range(0, len(at), BLOCK):
                    block = slice(start, start + BLOCK)
                    noisy = clean[block].masked_fill(mask[block], template["mask"])
                    canvas = torch.cat([clean[:start], noisy])[None]
                    expected = network.forward(Plan.full(canvas, network.visible())).logits()[0]
                    for position in (start + mask[block].nonzero().flatten()).tolist():
                        torch.testing.assert_close(
                            found[row, at[position]], expected[position - 1], atol=2e-4, rtol=1e-3
                        )
                        compared += 1
    assert compared == int(inputs["answer"].sum()) > 50


def test_every_answer_token_is_predicted_once(texts: Texts) -> None:
    rows = rows_of(texts)
    assert not (rows["masked"] & ~rows["answer"]).any()
    assert 0.3 < float(rows["masked"].sum() / rows["answer"].sum()) < 0.7
    assert int((rows["doc"] >= 0).sum()) == sum(-(-int(length) // BLOCK) * BLOCK for length in texts.lengths)
    block_start = rows["pos"] % BLOCK == 0
    assert torch.equal(rows["pos"][block_start] // BLOCK * BLOCK, rows["pos"][block_start])
    for text in range(len(texts)):  # the ids of each text are there as they were
        ids = texts.ids[texts.starts()[text] : texts.starts()[text] + texts.lengths[text]]
        assert any(
            np.array_equal(row[at : at + len(ids)], ids) for row in rows["ids"].numpy() for at in range(0, 64, BLOCK)
        )


def test_loss_counts_each_answer_token_by_its_own_view(texts: Texts) -> None:
    """The loss is the mean over answer tokens; with a view that masks nothing the other predicts all of them."""
    run = training(texts, torch.float32)
    inputs = {name: values[:4] for name, values in rows_of(texts).items()}
    whole = float(block_loss(run.weights, inputs, 4, RECIPE).detach())
    inputs["masked"] = torch.zeros_like(inputs["masked"])
    assert float(block_loss(run.weights, inputs, 4, RECIPE).detach()) != whole


def test_loss_falls(texts: Texts) -> None:
    run = training(texts)
    before = run.validation()
    for _ in range(60):
        run.take()
    assert run.validation() < before - 0.8


def test_resuming_is_bit_equal(texts: Texts, tmp_path: Path) -> None:
    """A run that wrote its state and went on, and one that read the state, end with the same bits."""
    whole = training(texts)
    for _ in range(5):
        whole.take()
    whole.checkpoint(tmp_path)
    for _ in range(5):
        whole.take()
    resumed = training(texts)
    assert resumed.restore(tmp_path)
    assert (resumed.step, resumed.tokens) == (5, 5 * 3.0 * 4 * 64)
    for _ in range(5):
        resumed.take()
    assert torch.equal(resumed.weights.master, whole.weights.master)
    assert torch.equal(resumed.weights.flat, whole.weights.flat)
    assert (resumed.step, resumed.tokens, resumed.rate()) == (whole.step, whole.tokens, whole.rate())
    other = training(texts)
    for _ in range(10):
        other.take()
    assert not torch.equal(other.weights.master, whole.weights.master)  # the state is coarser than the weights


def test_rate_of_the_last_stretch_falls_with_the_time_left(texts: Texts) -> None:
    """From 64% of the peak, where 36% of all tokens have been seen, to the 5% with which a training ends."""
    run = training(texts)
    run.tokens, run.local = 0.36e6, RECIPE.warmup
    assert run.rate() == pytest.approx(0.64 * RECIPE.rate)
    run.start, run.left = run.rate() / RECIPE.rate, iter((1.0, 0.5, 0.0)).__next__
    rates = []
    for _ in range(3):
        run.tokens += 1e4  # tokens no longer count
        rates.append(run.rate() / RECIPE.rate)
    assert rates == pytest.approx([0.64, 0.32, 0.05])


@pytest.mark.parametrize(("step", "most_bits", "energy"), [(0.55, 3.1, 0.03), (1.1, 2.2, 0.11)])
def test_difference_keeps_normal_values(step: float, most_bits: float, energy: float) -> None:
    shape = smollm2.Shape(64, 256, 1, 4, 2, 64, 512)
    generator = torch.Generator().manual_seed(0)
    changes = {name: torch.randn(size, generator=generator) * 1e-3 for name, size in shape.names().items()}
    steps = {"matrix": step, "embedding": step}
    content = difference.encode(shape, changes, steps)
    assert 8 * len(content) / sum(values.numel() for values in changes.values()) < most_bits
    for name, values in difference.decode(shape, content).items():
        lost = (values - changes[name]).square().sum() / changes[name].square().sum()
        assert lost < (energy if values.dim() > 1 else 1e-5)


def test_integers_take_the_bits_of_their_distributions() -> None:
    """Four classes, of which one has a single symbol and one occurs nowhere."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 300_001).astype(np.uint8)
    symbols = np.where(classes == 2, 5, rng.binomial(8, 0.1 + 0.2 * classes)).astype(np.uint8)
    counts = np.zeros((4, 9), np.int64)
    np.add.at(counts, (classes, symbols), 1)
    table = entropy.frequencies(counts)
    assert table.sum(1).tolist() == [2**14] * 4
    content = entropy.encode(symbols, classes, table)
    assert np.array_equal(entropy.decode(content, classes, table), symbols)
    shares = counts[:3] / counts[:3].sum(1, keepdims=True)
    bits = -(counts[:3] * np.log2(np.where(shares > 0, shares, 1))).sum()
    assert 0 < len(content) - bits / 8 < 0.01 * len(content) + 4 * entropy.LANES


def test_coded_matrices_come_back_exactly() -> None:
    shape, _, base = tiny()
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor | difference.Coded] = {}
    for name, size in shape.names().items():
        tensors[name] = base[name].half().float()
        if len(size) > 1:
            drawn = torch.randint(-31, 32, size, generator=generator) * torch.randint(0, 2, size, generator=generator)
            rows = torch.randint(0, 256, size[:1], generator=generator)
            columns = torch.randint(-128, 128, size[1:], generator=generator)
            tensors[name] = difference.Coded(drawn.to(torch.int8), rows.short(), columns.short())
    found = difference.decode(shape, difference.pack(shape, tensors))
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor if isinstance(tensor, Tensor) else tensor.values())


def test_errors_are_made_up_for_in_later_columns() -> None:
    """With inputs that go together, what errors cost is far less than that of the same steps without feedback."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(500, 12, generator=generator) @ torch.randn(12, 48, generator=generator)
    inputs += 0.1 * torch.randn(inputs.shape, generator=generator)
    values = 1e-3 * torch.randn(30, 48, generator=generator)
    cost = feedback.Cost(inputs.T @ inputs, torch.logspace(0, 3, 30))
    coded = feedback.rounded(values, cost, 0.004)
    steps = difference.power(-coded.rows)[:, None] * difference.power(coded.columns)
    plain = (values / steps).round().clamp(-difference.MOST, difference.MOST) * steps

    def lost(found: Tensor) -> float:
        errors = found - values
        return float(((errors @ cost.columns * errors).sum(1) * cost.rows / cost.rows.sum()).sum())

    assert int(coded.integers.abs().max()) > 2
    assert lost(coded.values()) < 0.3 * lost(plain)
    assert coded.rows[-1] - coded.rows[0] == pytest.approx(40, abs=1)  # 1000 times the cost: 2**5 times finer


def test_costs_foretell_how_far_predictions_move(texts: Texts) -> None:
    """Small random errors of a matrix move the predictions by about what its cost says: half of the sum, in nats."""
    shape, template, base = tiny()
    base = {name: values * 3 if values.dim() > 1 else values for name, values in base.items()}
    found = feedback.costs(shape, base, texts, template, 1)
    [inputs] = feedback.inputs_of(texts, template, 1)

    @torch.no_grad()
    def likely(tensors: dict[str, Tensor]) -> Tensor:
        weights = Weights(shape, tensors, CPU, torch.float32)
        wanted = block_states(weights, inputs, template["mask"], Recipe.block)[inputs["answer"]]
        return (wanted @ tensors["model.embed_tokens.weight"].T).log_softmax(-1)

    before, generator = likely(base), torch.Generator().manual_seed(0)
    assert {name for name, size in shape.names().items() if len(size) > 1} == set(found)
    for name, cost in found.items():
        moved = []
        for _ in range(8):
            errors = 1e-3 * torch.randn(base[name].shape, generator=generator)
            after = likely(base | {name: base[name] + errors})
            moved.append(float((before.exp() * (before - after)).sum()))
        foretold = 0.5 * 1e-6 * float(cost.columns.trace())
        assert 0.4 < np.mean(moved) / foretold < 2.5, name


def test_a_finished_state_takes_fewer_bytes(texts: Texts) -> None:
    """A larger step is fewer bytes and a larger loss; vectors stay as they are."""
    shape, template, base = tiny()
    run = training(texts)
    for _ in range(60):
        run.take()
    changes = {name: values - base[name] for name, values in run.weights.views(run.weights.master).items()}

    def loss(tensors: dict[str, Tensor]) -> float:
        whole = {name: base[name] + tensors[name] for name in base}
        return Training(shape, whole, texts, template, RECIPE, CPU, torch.float32).validation()

    sizes, losses = [], [loss(changes)]
    for step in (0.01, 1.0):
        content = feedback.encoded(shape, template, base, changes, texts, {"matrix": step, "embedding": step}, 1)
        again = difference.decode(shape, content)
        assert torch.equal(again["model.norm.weight"], changes["model.norm.weight"].half().float())
        sizes.append(len(content))
        losses.append(loss(again))
    assert sizes[1] < 0.8 * sizes[0]
    assert losses[1] < losses[0] + 0.03
    assert losses[2] > losses[0] + 0.5


def test_only_a_finished_state_is_encoded_and_once(
    texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = tmp_path / "model.gguf"
    assert feedback.encode(gguf, tmp_path) == 2
    assert f"error: {gguf} does not exist" in capsys.readouterr().err
    gguf.touch()
    assert feedback.encode(gguf, tmp_path) == 2
    assert f"error: {tmp_path / 'state-1.bin'} does not exist" in capsys.readouterr().err
    training(texts).checkpoint(tmp_path)
    assert feedback.encode(gguf, tmp_path) == 2
    assert f"error: {tmp_path / 'texts-1.bin'} does not exist" in capsys.readouterr().err
    texts.save(tmp_path)
    assert feedback.encode(gguf, tmp_path) == 2
    assert "that of a training that goes on" in capsys.readouterr().err
    found = difference.load(tmp_path)
    difference.save(tmp_path, found[0], {**found[1], "finished": True, "encoded": [1.0, 1.1]})
    assert feedback.encode(gguf, tmp_path) == 2
    assert "has been encoded" in capsys.readouterr().err


def test_unchanged_weights_have_no_difference(texts: Texts, tmp_path: Path) -> None:
    run = training(texts)
    run.checkpoint(tmp_path)
    base = torch.cat([run.base[name].flatten() for name in run.shape.names()])
    assert torch.equal(run.weights.master, base)


def test_texts_are_saved_and_read_back(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runs.texts.FILE_TOKENS", 500)
    assert len(texts.save(tmp_path)) > 2
    again = Texts.load(tmp_path)
    assert all(np.array_equal(getattr(again, name), getattr(texts, name)) for name in ("ids", "prompts", "lengths"))
    assert Texts.load(tmp_path / "none") is None


def test_texts_are_written_by_the_model() -> None:
    """Greedy rows are the argmax of the model's own causal forward; prompts have the template around the message."""
    shape, template, base = tiny()
    weights = Weights(shape, base, CPU, torch.float32)
    [row, other] = _Decoder(weights, 2, 40)([[1, 9, 3], [1, 5]], 2, 20, 0.0, seed=0)
    for ids, prompt in ((row, 3), (other, 2)):
        with torch.no_grad():
            causal = torch.ones(1, len(ids), len(ids), dtype=torch.bool).tril()
            three = torch.tensor([[ids] * 3])
            found = states(weights, three, torch.arange(len(ids))[None], (causal.repeat(1, 1, 2), causal))[0, 2]
            likeliest = (found @ base["model.embed_tokens.weight"].T).argmax(-1).tolist()
        assert ids[prompt:] == likeliest[prompt - 1 : -1]
    found_texts = write(weights, template, tokens=300, seconds=30, rows=16, message=24, answer=16)
    assert len(found_texts.ids) >= 300
    for text, start in enumerate(found_texts.starts()):
        ids = found_texts.ids[start : start + found_texts.lengths[text]].tolist()
        prompt = int(found_texts.prompts[text])
        assert ids[:3] == template["before"]
        assert ids[prompt - 4 : prompt] == template["after"]
        assert ids[:prompt].count(2) == 1  # the message has no end token of its own
        assert 1 <= len(ids) - prompt <= 16


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F32"])
def test_carried_blocks_are_dequantized_as_gguf_does(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    coded = gguf.quants.quantize(values, getattr(gguf.GGMLQuantizationType, kind))
    expected = gguf.quants.dequantize(coded, getattr(gguf.GGMLQuantizationType, kind))
    found = smollm2.dequantized(torch.frombuffer(bytearray(coded.tobytes()), dtype=torch.uint8), kind)
    np.testing.assert_array_equal(found.view(6, 64).numpy(), expected)
