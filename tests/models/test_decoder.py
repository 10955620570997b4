from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM

import pardec
from pardec.models.decoder import DecoderConfig
from pardec.models.errors import ModelError
from pardec.models.families.llama_like import NAMES
from pardec.models.kernels.cpu import blocks
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids, model, poisoned


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def whole(toy, tokens, lengths=None):
    """Logits of every position without a cache."""
    return toy.forward(Plan.full(tokens, toy.visible(), lengths)).logits()


def test_a_cached_row_token_by_token_equals_one_pass():
    toy = model("causal")
    tokens = ids(2, 9)
    expected = whole(toy, tokens)
    cache = poisoned(toy.new_cache(2, 9))
    for position in range(9):
        at = torch.full((2, 1), position)
        out = toy.forward(ask(tokens[:, position : position + 1], at, toy.visible(), at[:, 0] + 1), cache)
        close(out.logits()[:, 0], expected[:, position])


@pytest.mark.parametrize("attention", ["bidirectional", "causal", "block-causal"])
def test_a_row_alone_gives_what_it_gives_in_a_ragged_batch(attention):
    toy = model(attention, block=4)
    tokens, lengths = ids(3, 10), torch.tensor([10, 6, 1])
    cache = poisoned(toy.new_cache(3, 12))
    out = toy.forward(Plan.full(tokens, toy.visible(), lengths), cache).logits()
    bare = whole(toy, tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = whole(toy, tokens[row : row + 1, :length])[0]
        close(out[row, :length], alone)
        close(bare[row, :length], alone)
    assert out.isfinite().all()
    assert bare.isfinite().all()


@pytest.mark.skipif(not blocks.supported(), reason="packed weights have no kernel here")
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_rows_of_unequal_length_have_the_bits_that_they_have_alone(activations):
    """With int8 activations a difference of one bit changes log-probabilities by a tenth."""
    how = {"dtype": "float32", "quantize": "int8", "activations": activations}
    network = pardec.load("tiny-llama", device="cpu", **how).language_model
    tokens, lengths = ids(3, 40) % network.vocab_size, [40, 17, 29]
    order = torch.arange(40)
    whole = torch.tensor(lengths)
    positions = torch.where(order < whole[:, None], order, -1)
    cache = network.new_cache(3, 44)
    prompts = network.forward(ask(tokens, positions, network.visible(), whole), cache).logits()
    steps = []
    for at in range(3):
        plan = ask(tokens[:, at : at + 1], (whole + at)[:, None], network.visible(), whole + at + 1)
        steps.append(network.forward(plan, cache).logits())
    for row, length in enumerate(lengths):
        own = network.new_cache(1, 44)
        alone = network.forward(Plan.full(tokens[row : row + 1, :length], network.visible()), own).logits()
        assert torch.equal(alone[0], prompts[row, :length])
        last = replace(Plan.full(tokens[row : row + 1, :length], network.visible()), narrow=True)
        last = replace(last, want=torch.tensor([[length - 1]]))
        assert torch.equal(network.forward(last, network.new_cache(1, 44)).logits()[0, 0], prompts[row, length - 1])
        for at, step in enumerate(steps):
            plan = Plan(
                tokens[row : row + 1, at : at + 1], *[torch.tensor([[length + at]])] * 2, network.visible(),
                torch.tensor([length + at + 1]), torch.tensor([[0]]), uniform=length + at + 1,
                span=(length + at, length + at + 1),
            )  # fmt: skip
            assert torch.equal(network.forward(plan, own).logits()[0], step[row])


def test_rolling_back_is_handing_in_smaller_lengths():
    toy = model("causal")
    tokens, wrong = ids(1, 8), ids(1, 4, seed=1)
    cache = toy.new_cache(1, 8)
    toy.forward(Plan.full(tokens[:, :4], toy.visible()), cache)
    late = torch.arange(4, 8)[None]
    toy.forward(ask(wrong, late, toy.visible(), torch.tensor([8])), cache)
    at = torch.tensor([[4, 5]])
    out = toy.forward(ask(tokens[:, 4:6], at, toy.visible(), torch.tensor([6])), cache).logits()
    close(out, whole(toy, tokens)[:, 4:6])


def test_a_window_can_be_asked_again_in_any_order():
    toy = model("bidirectional")
    tokens = ids(1, 10)
    cache = toy.new_cache(1, 10)
    toy.forward(Plan.full(ids(1, 10, seed=2), toy.visible()), cache)
    toy.forward(Plan.full(tokens, toy.visible()), cache)
    window = torch.tensor([[7, 3, 5]])
    out = toy.forward(ask(tokens.gather(1, window), window, toy.visible(), torch.tensor([10])), cache).logits()
    # Layer by layer the K/V of all other positions are those of the whole pass, so nothing changes.
    close(out, whole(toy, tokens).gather(1, window[..., None].expand(-1, -1, toy.vocab_size)))


def test_a_tree_draft_equals_its_branches_as_chains():
    toy = model("causal")
    prompt = ids(2, 7)
    starts = torch.tensor([5, 7])  # ragged: row 0 has 5 committed tokens, row 1 has 7
    nodes, parents, depth = ids(2, 5, seed=3), torch.tensor([-1, 0, 0, 1, 2]), torch.tensor([0, 1, 1, 2, 2])
    cache = poisoned(toy.new_cache(2, 12))
    toy.forward(Plan.full(prompt, toy.visible(), starts), cache)
    positions, slots = starts[:, None] + depth, starts[:, None] + torch.arange(5)
    plan = ask(nodes, positions, Visible.tree(parents, starts), starts + 5, slots=slots)
    out = toy.forward(plan, cache).logits()
    for row, start in enumerate(starts.tolist()):
        for path in ([0, 1, 3], [0, 2, 4]):
            chain = torch.cat((prompt[row, :start], nodes[row, path]))[None]
            close(out[row, path], whole(toy, chain)[0, start:])
    # The accepted path moves together, and decoding goes on after it.
    path = torch.tensor([[0, 2, 4], [0, 1, 3]])
    cache.move(slots.gather(1, path), slots[:, :3])
    following = ids(2, 1, seed=4)
    at = starts[:, None] + 3
    out = toy.forward(ask(following, at, toy.visible(), starts + 4), cache).logits()
    for row, start in enumerate(starts.tolist()):
        chain = torch.cat((prompt[row, :start], nodes[row, path[row]], following[row]))[None]
        close(out[row, 0], whole(toy, chain)[0, -1])


def test_segments_equal_the_mask_that_says_the_same():
    toy = model("block-causal", block=3)
    tokens = ids(2, 8)
    order = torch.arange(8)
    mask = (order[None, :] // 3 <= order[:, None] // 3).expand(2, 8, 8)
    expected = whole(toy, tokens)
    for visible in (Visible.mask(mask), Visible.segments(ids=(order // 3).expand(2, 8))):
        cache = toy.new_cache(2, 8)
        close(toy.forward(ask(tokens, order.expand(2, 8), visible, torch.tensor([8, 8])), cache).logits(), expected)
    cache = poisoned(toy.new_cache(2, 9))  # block by block
    for start in (0, 3, 6):
        stop = min(start + 3, 8)
        at = order[start:stop].expand(2, -1)
        plan = ask(tokens[:, start:stop], at, toy.visible(), torch.full((2,), stop))
        close(toy.forward(plan, cache).logits(), expected[:, start:stop])
        known = replace(plan, uniform=stop, span=(start, stop))
        close(toy.forward(known, cache).logits(), expected[:, start:stop])


def test_without_a_cache_lengths_still_bound_what_is_seen():
    toy = model("bidirectional")
    tokens = ids(1, 6)
    plan = replace(Plan.full(tokens, toy.visible()), lengths=torch.tensor([4]))
    expected = whole(toy, tokens[:, :4])
    close(toy.forward(replace(plan, uniform=4)).logits()[:, :4], expected)
    close(toy.forward(replace(plan, uniform=None)).logits()[:, :4], expected)


def test_segment_ids_may_end_before_the_capacity():
    toy = model("bidirectional")
    tokens, segments = ids(1, 4), torch.tensor([[0, 0, 1, 1]])
    cache = poisoned(toy.new_cache(1, 9))
    out = toy.forward(ask(tokens, torch.arange(4)[None], Visible.segments(ids=segments), torch.tensor([4])), cache)
    close(out.logits()[:, :2], whole(toy, tokens[:, :2]))


def test_rows_reach_the_cache_in_any_order():
    toy = model("bidirectional")
    tokens = ids(3, 6)
    cache = toy.new_cache(3, 6)
    toy.forward(Plan.full(tokens, toy.visible()), cache)
    rows = torch.tensor([2, 0])
    at = torch.tensor([[1, 4], [0, 5]])
    plan = ask(tokens[rows].gather(1, at), at, toy.visible(), torch.tensor([6, 6]), rows=rows)
    expected = whole(toy, tokens)[rows].gather(1, at[..., None].expand(-1, -1, toy.vocab_size))
    close(toy.forward(plan, cache).logits(), expected)
    close(toy.forward(replace(plan, uniform=6), cache).logits(), expected)


def test_rows_that_are_kept_go_on():
    toy = model("causal")
    tokens = ids(3, 6)
    cache = toy.new_cache(3, 6)
    toy.forward(Plan.full(tokens[:, :5], toy.visible()), cache)
    cache.keep(torch.tensor([2, 1]))
    at = torch.tensor([[5], [5]])
    out = toy.forward(ask(tokens[[2, 1], 5:], at, toy.visible(), torch.tensor([6, 6])), cache).logits()
    close(out[:, 0], whole(toy, tokens)[[2, 1], 5])


def test_a_pass_stops_at_a_layer_and_goes_on():
    toy = model("causal")
    tokens = ids(2, 6)
    cache = toy.new_cache(2, 6)
    plan = Plan.full(tokens, toy.visible())
    early = toy.forward(replace(plan, layers=slice(0, 2), hidden=(0, 1)), cache)
    assert sorted(early.taps) == [0, 1]
    assert torch.equal(early.taps[1], early.states)
    late = toy.forward(replace(plan, layers=slice(2, None), soft=early.states), cache)
    close(late.logits(), whole(toy, tokens))
    assert early.logits().shape == late.logits().shape  # an early exit runs the head on what it has


def test_a_pass_cannot_start_in_the_middle_without_states():
    toy = model()
    plan = replace(Plan.full(ids(1, 3), toy.visible()), layers=slice(1, 3))
    with pytest.raises(ModelError, match="layer 1 needs the states"):
        toy.forward(plan)


def test_skipped_sub_blocks_leave_the_stream_alone():
    toy = model()
    plan = Plan.full(ids(1, 4), toy.visible())
    out = toy.forward(replace(plan, hidden=(0, 1, 2), skip=frozenset({(1, "attn"), (1, "mlp"), (2, "mlp")})))
    assert torch.equal(out.taps[1], out.taps[0])
    assert not torch.equal(out.taps[2], out.taps[1])
    only = toy.forward(replace(plan, layers=slice(2, 3), soft=out.taps[1], skip=frozenset({(2, "mlp")})))
    close(only.states, out.taps[2])


def test_soft_rows_are_added_to_the_embeddings():
    toy = model()
    tokens = ids(1, 4)
    table = toy.decoder.embed.weight
    soft = table[tokens + 1 - 2 * (tokens == toy.vocab_size - 1)] - table[tokens]
    other = tokens + 1 - 2 * (tokens == toy.vocab_size - 1)
    out = toy.forward(replace(Plan.full(tokens, toy.visible()), soft=soft))
    close(out.logits(), whole(toy, other))


@pytest.mark.parametrize("attention", ["bidirectional", "causal", "block-causal"])
@pytest.mark.parametrize("known", [False, True], ids=["ragged", "uniform"])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["plain", "qk-norm"])
def test_a_narrow_last_layer_changes_no_wanted_logit(attention, known, qk_norm):
    toy = model(attention, block=4, qk_norm=qk_norm, qkv_bias=True)
    tokens, want = ids(2, 8), torch.tensor([[6, 1], [3, -1]])
    plan = Plan.full(tokens, toy.visible(), None if known else torch.tensor([8, 5]))
    expected = toy.forward(replace(plan, want=want)).logits()
    cache = toy.new_cache(2, 8)
    for store in (None, cache):
        out = toy.forward(replace(plan, want=want, narrow=True), store)
        assert out.states.shape[1] == 2
        close(out.logits()[want >= 0], expected[want >= 0])
        found = out.logits(torch.tensor([[1, 6], [3, 3]]))
        close(found[0], expected[0].flip(0))
        assert out.has(torch.tensor([[1, 0], [3, 1]])).tolist() == [[True, False], [True, False]]
    again = toy.forward(ask(tokens, plan.positions, toy.visible(), plan.lengths), cache)  # K/V of all queries are there
    close(again.logits()[0], whole(toy, tokens[:1])[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_near_float32(dtype):
    exact, half = model("bidirectional"), model("bidirectional", dtype=dtype)
    tokens = ids(2, 9)
    cache = poisoned(half.new_cache(2, 9))
    assert cache.k[0].dtype == dtype
    out = half.forward(Plan.full(tokens, half.visible(), torch.tensor([9, 4])), cache).logits()
    assert out.dtype == torch.float32
    close(out[0], whole(exact, tokens)[0], 0.1)
    close(out[1, :4], whole(exact, tokens[1:, :4])[0], 0.1)


def test_the_stack_can_be_trained():
    toy = model()
    decoder = toy.decoder.train().requires_grad_(True)
    logits = decoder(Plan.full(ids(2, 6), Visible.causal())).logits()
    logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in decoder.parameters())


def test_impossible_shapes_are_refused():
    shape = {
        "vocab": 8, "width": 8, "layers": 1, "heads": 3, "kv_heads": 2, "head_dim": 4, "mlp_width": 8, "norm_eps": 1e-5,
    }  # fmt: skip
    with pytest.raises(ModelError, match="3 heads cannot share 2"):
        DecoderConfig(**shape, frequencies=(1.0,))
    with pytest.raises(ModelError, match="6 rotated dimensions do not fit a head of 4"):
        DecoderConfig(**shape | {"kv_heads": 3}, frequencies=(1.0,) * 3)
    with pytest.raises(ModelError, match="layers must be at least 1, got 0"):
        DecoderConfig(**shape | {"layers": 0}, frequencies=(1.0,))


def test_gates_norms_and_scaled_embeddings_of_gemma_are_those_of_transformers():
    config = GemmaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    theirs, generator = GemmaForCausalLM(config).eval(), torch.Generator().manual_seed(0)
    toy = model("causal", head_dim=16, norm_eps=config.rms_norm_eps, activation="gelu_tanh", tied=True)
    toy.decoder.config = replace(toy.decoder.config, embedding_scale=32**0.5)
    toy.decoder.head.weight = toy.decoder.embed.weight
    weights = theirs.state_dict()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(0.0, 0.2, generator=generator)
        for name, parameter in toy.decoder.named_parameters():
            layer = name.split(".")[1] if name.startswith("layers") else ""
            stems = NAMES[name.replace(f".{layer}.", ".{i}.") if layer else name]
            parts = [weights[stem.replace("{i}", layer)] for stem in ([stems] if isinstance(stems, str) else stems)]
            parameter.copy_(torch.cat(parts) + ("norm" in name))  # Gemma multiplies by 1 + w
    tokens = ids(2, 9)
    with torch.no_grad():
        expected = theirs(tokens).logits
    close(whole(toy, tokens), expected, 1e-4)
    assert expected.abs().max() > 1
