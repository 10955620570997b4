"""Models from GGUF files: weights, tokenizer and settings equal the original's; each file is converted once."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import ModelError
from pardec.models.files.gguf import contents, convert
from pardec.models.files.gguf.architecture import describe
from pardec.models.files.gguf.architectures import ARCHITECTURES
from pardec.models.files.gguf.header import Header, read_header
from pardec.models.files.gguf.keys import FOLLOWED, IGNORED, TOKENIZER_FOLLOWED, TOKENIZER_IGNORED, known_keys
from pardec.models.files.gguf.listing import converted_files
from pardec.models.files.token_bytes import TokenBytes
from pardec.models.load import load
from pardec.models.loading.kinds import kind_of
from tests.models.loading.expert_gguf import write_experts
from tests.models.loading.gguf_files import (
    CONFIG,
    MERGES,
    TEMPLATE,
    TOKENS,
    finish,
    tokenizer_fields,
    write_embedded_gguf,
    write_gguf,
)
from tests.models.toys import ROOT

F32 = gguf.GGMLQuantizationType.F32
IDS = torch.tensor([[1, 40, 77, 3, 150, 9, 9, 260]])
TEXTS = ["In the 12345 nights", "tab\tand\nnewline", "né 漢字 😀", "<|im_start|>the<|im_end|><think> a", "a123 the the"]


def logits(model: pardec.Model) -> torch.Tensor:
    return model.logits(IDS)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "cache"))
    convert._ready.clear()
    return tmp_path / "cache" / "gguf"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_a_file_loads_as_the_weights_it_stands_for(tmp_path: Path, kind: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", kind)
    own = pardec.load(file, device="cpu", dtype="float32")
    assert own.name == "toy"
    assert torch.equal(logits(own), logits(pardec.load(tmp_path / "toy", device="cpu", dtype="float32")))


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {"tied": False}),
        ("llama", {"changes": {"attention_bias": True, "mlp_bias": True}}),
        ("qwen2", {}),
        ("qwen3", {"tied": False}),
    ],
)
def test_every_architecture(tmp_path: Path, family: str, more: dict[str, Any]) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "F16", family, **more)
    own = pardec.load(file, device="cpu", dtype="float32")
    assert own.network.family == family
    assert torch.equal(logits(own), logits(pardec.load(tmp_path / "toy", device="cpu", dtype="float32")))


@pytest.mark.parametrize("family", ["dream", "llada"])
def test_masked_models(tmp_path: Path, family: str) -> None:
    published = pardec.load(f"tiny-{family}", device="cpu", dtype="float32")
    own = pardec.load(write_embedded_gguf(tmp_path / "toy.gguf", published.path, family), device="cpu", dtype="float32")
    found, expected = own.network.decoding_config, published.network.decoding_config
    assert (own.network.family, found.mask_id, found.shift) == (family, expected.mask_id, expected.shift)
    assert torch.equal(logits(own), logits(published))


def test_transformers_reads_the_same_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(IDS).logits
    torch.testing.assert_close(logits(pardec.load(file, device="cpu")), expected, rtol=1e-4, atol=1e-4)


def test_settings_are_those_of_the_file(tmp_path: Path) -> None:
    model = load(write_gguf(tmp_path / "toy.gguf"), device="cpu")
    for name in ("hidden_size", "intermediate_size", "num_key_value_heads", "head_dim", "rms_norm_eps"):
        assert model.config[name] == CONFIG[name]
    assert model.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 50000.0}
    decoding = model.decoding_config
    ends = (2, 0)  # the file's own, and <|endoftext|>
    assert (decoding.eos_ids, decoding.bos_id, decoding.pad_id, model.max_positions) == (ends, 1, 2, 128)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_rotary_scaling_of_llama_3(tmp_path: Path, factor: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 50000.0}
    full = LlamaConfig(**{**CONFIG, "rope_parameters": rope})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](full, "cpu")
    divisors = (50000.0 ** (-torch.arange(0, 32, 2) / 32) / scaled).numpy().astype(np.float32)
    file = write_gguf(tmp_path / "toy.gguf", tensors={"rope_freqs.weight": (divisors, F32)})
    assert load(file, device="cpu").config["rope_parameters"] == rope
    other = write_gguf(tmp_path / "other.gguf", tensors={"rope_freqs.weight": (divisors[::-1].copy(), F32)})
    with pytest.raises(ModelError, match="are not those of Llama 3"):
        load(other, device="cpu")


# --- the tokenizer ---


def test_the_tokenizer_is_the_files(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    file = write_gguf(tmp_path / "toy.gguf")
    own = pardec.load(file, device="cpu").tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    assert own.get_vocab() == theirs.get_vocab() == {token: index for index, token in enumerate(TOKENS)}
    for text in TEXTS[1:4]:  # transformers does not take digits one by one, as the file says
        assert own.encode(text) == theirs.encode(text)
    for text in TEXTS:
        assert own.decode(own.encode(text)) == text
    assert (own.bos_token, own.eos_token, own.pad_token) == (TOKENS[1], TOKENS[2], TOKENS[2])
    assert own.decode([1, 40, 2], skip_special_tokens=True) == own.decode([40])
    assert own.chat_template == TEMPLATE
    assert own.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False) == (
        "<|im_start|>the<|im_end|><|im_start|>"
    )


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("smollm", ["a", "1", "2", "3", "Ġthe", "ĠĠ", "1"]),
        ("gpt-2", ["a", "123", "Ġthe", "Ġ", "Ġ", "1"]),
        ("llama-bpe", ["a", "123", "Ġthe", "Ġ", "Ġ", "1"]),
        ("qwen2", ["a", "1", "2", "3", "Ġthe", "Ġ", "Ġ", "1"]),
        ("llada-moe", ["a", "1", "2", "3", "Ġthe", "Ġ", "Ġ", "1"]),
    ],
)
def test_text_is_split_as_the_file_says(tmp_path: Path, split: str, expected: list[str]) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata=tokenizer_fields(split))
    own = pardec.load(file, device="cpu").tokenizer
    assert own.convert_ids_to_tokens(own.encode("a123 the  1")) == expected


def test_a_start_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    own = pardec.load(file, device="cpu").tokenizer
    assert own.encode("the") == [1, TOKENS.index("the")]
    assert own.encode("the", add_special_tokens=False) == [TOKENS.index("the")]


def test_a_file_without_a_tokenizer_loads(tmp_path: Path) -> None:
    nothing = dict.fromkeys(tokenizer_fields(), None)
    assert pardec.load(write_gguf(tmp_path / "toy.gguf", metadata=nothing), device="cpu").tokenizer is None


# --- the cache ---


def test_a_file_is_converted_once(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    expected = logits(pardec.load(file, device="cpu"))
    [folder] = own_cache.iterdir()
    assert load(file, device="cpu").path == folder
    assert all(entry.stat().st_mode & 0o077 == 0 for entry in (folder, *folder.iterdir()))
    monkeypatch.setattr(convert, "_write", lambda *_: pytest.fail("converted again"))
    convert._ready.clear()  # as in another process
    assert torch.equal(logits(pardec.load(shutil.copy(file, tmp_path / "copy.gguf"), device="cpu")), expected)
    assert kind_of(file).family == "ar"  # type: ignore[union-attr]


def test_a_header_is_parsed_once_until_its_file_changes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Path] = []

    def counted(file: Path) -> Header:
        parsed.append(file)
        return read_header(file)

    for module in (convert, contents):
        monkeypatch.setattr(module, "read_header", counted)
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    for _ in range(2):
        expected = logits(pardec.load(file, device="cpu"))
        assert parsed == [file]
    status = file.stat()
    raw = bytearray(file.read_bytes())
    raw[read_header(file).tensors["output_norm.weight"].start + 3] ^= 0x80  # the sign of a float32
    file.write_bytes(raw)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # of the same size, and said to be as old
    assert not torch.equal(logits(pardec.load(file, device="cpu")), expected)
    assert parsed == [file] * 2


def test_files_that_were_converted_are_listed(tmp_path: Path, own_cache: Path) -> None:
    assert converted_files() == []
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0", metadata={"general.name": "a\x1bb"})
    folder = load(file, device="cpu").path
    [entry] = converted_files()
    assert (entry.name, entry.family, entry.summary) == (str(file), "llama", r"a\x1bb, Q8_0")
    assert entry.parameters == load(file, device="cpu").parameters
    assert entry.path == str(folder)
    (own_cache / "part-x").mkdir()
    (own_cache / folder.name / "source.json").chmod(0o666)  # type: ignore[union-attr]
    assert converted_files() == []
    (own_cache / folder.name / "source.json").chmod(0o600)  # type: ignore[union-attr]
    file.unlink()
    assert converted_files() == []


def test_another_content_is_another_model(tmp_path: Path, own_cache: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "F16")
    first = logits(pardec.load(file, device="cpu"))
    shutil.copy(write_gguf(tmp_path / "other.gguf", "Q8_0"), file)
    assert not torch.equal(logits(pardec.load(file, device="cpu")), first)
    assert len([*own_cache.iterdir()]) == 2


def test_what_others_may_have_written_is_not_read(tmp_path: Path, own_cache: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf")
    folder = load(file, device="cpu").path
    (folder / "config.json").chmod(0o666)
    convert._ready.clear()
    with pytest.raises(ModelError, match=r"others may write to .*config\.json"):
        load(file, device="cpu")


def test_nothing_is_left_of_what_fails(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "toy.gguf")
    with monkeypatch.context() as patch:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        with pytest.raises(ModelError, match=r"the disk is full \(No space left on device\)") as caught:
            load(file, device="cpu")
        assert "PARDEC_CACHE=" in str(caught.value.hint)
    assert [*own_cache.iterdir()] == []
    load(file, device="cpu")


# --- what is refused ---


def test_without_the_library_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata={"general.name": "missing"})
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match="needs the package gguf") as caught:
        load(file, device="cpu")
    assert "[gguf]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"metadata": {"llama.block_count": 3}}, "lacks 9 tensors: blk.2.attn_k.weight"),
        ({"metadata": {"llama.block_count": 2**31 - 1}}, "2147483647 layers"),
        ({"metadata": {"llama.attention.head_count": None}}, "llama.attention.head_count is missing"),
        ({"metadata": {"llama.attention.head_count": 0}}, "0 heads"),
        ({"metadata": {"llama.attention.head_count": [4, 4]}}, r"is '\[4, 4\]', and a whole number is needed"),
        ({"metadata": {"llama.feed_forward_length": 10**9}}, r"ffn_(gate|up|down).weight has shape"),
        ({"metadata": {"llama.rope.dimension_count": 16}}, "of which 16 are rotated"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "scaling of type 'yarn' is not supported"),
        ({"metadata": {"llama.expert_count": 8}}, "expert_count is 8: not supported"),
        ({"metadata": {"split.count": 3}}, "one of 3 parts"),
        ({"metadata": {"tokenizer.ggml.model": "llama"}}, "a tokenizer of type 'llama'"),
        ({"metadata": {"tokenizer.ggml.pre": "x\x1b[31m"}}, r"splits text like 'x\\x1b\[31m'"),
        ({"metadata": {"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}}, "1 different ones"),
        ({"metadata": {"tokenizer.ggml.token_type": 5}}, "token_type is no list"),
        ({"metadata": {"tokenizer.ggml.token_type": [1, 1]}}, "2 types"),
        ({"metadata": {"llama.attention.value_length": 16}}, "and values of 16: not supported"),
        ({"metadata": {"tokenizer.ggml.tokens": 5}}, "tokenizer.ggml.tokens is no list of texts"),
        ({"metadata": {"tokenizer.ggml.merges": [*MERGES, "q zz"]}}, "the tokenizer of .* cannot be built"),
        ({"metadata": {"tokenizer.ggml.merges": [*MERGES, "the"]}}, "a merge is no pair"),
        ({"tensors": {"blk.0.ffn_up.weight": (None, None)}}, "lacks 1 tensors: blk.0.ffn_up.weight"),
        ({"tensors": {"x\x1b": (np.zeros(4, np.float32), F32)}}, r"unknown tensors: x\\x1b"),
        ({"tensors": {"output_norm.weight": (np.zeros(4, np.float32), F32)}}, r"has shape \(4,\), not \(64,\)"),
        ({"tensors": {"output_norm.weight": (np.zeros(64), gguf.GGMLQuantizationType.F64)}}, "type F64, which the"),
    ],
)
def test_what_cannot_be_read_faithfully_is_named(tmp_path: Path, more: dict[str, Any], problem: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", **more)
    with pytest.raises(ModelError, match=problem) as caught:
        load(file, device="cpu")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    finish(writer)
    with pytest.raises(ModelError, match="of architecture 'mamba'") as caught:
        load(tmp_path / "toy.gguf", device="cpu")
    assert "llama, qwen2, qwen3" in str(caught.value.hint)


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def head(version: int = 3, tensors: int = 0, fields: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def field(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(*shape: int, kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = 2**63
DAMAGED = {
    "empty": (b"", "is empty"),
    "another": (b"\x1b[31m..", r"is not a GGUF file: it begins with b'\\x1b\[31'"),
    "page": (b"<!DOCTYPE html>", "is not a GGUF file: it begins with b'<!DO'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS"),
    "magic alone": (b"GGUF", "cut short"),
    "version": (head(version=9), "GGUF version 9"),
    "other bytes": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "fields": (head(fields=HUGE), "cut short"),
    "tensors": (head(tensors=HUGE), "cut short"),
    "long text": (head(fields=1) + struct.pack("<Q", HUGE), "cut short"),
    "long list": (head(fields=1) + field("a", 9, struct.pack("<IQ", 0, HUGE)), "cut short"),
    "long texts": (head(fields=1) + field("a", 9, struct.pack("<IQ", 8, HUGE)), "cut short"),
    "lists": (head(fields=1) + field("a", 9, struct.pack("<IQ", 9, 1)), "a list holds values of the type 9"),
    "type": (head(fields=1) + field("a", 77, b""), "unknown type 77"),
    "bytes": (head(fields=1) + field("a", 8, text(b"\xff\xfe")), "is not UTF-8"),
    "twice": (head(fields=2) + 2 * field("a\x1b", 0, b"1"), r"'a\\x1b' is in it twice"),
    "alignment": (head(fields=1) + field("general.alignment", 4, struct.pack("<I", 0)), "alignment is 0"),
    "axes": (head(tensors=1) + tensor(*[1] * 9), "has 9 axes"),
    "nothing": (head(tensors=1) + tensor(0, 3), "a tensor is empty"),
    "large": (head(tensors=1) + tensor(2**40, 2**40), "cut short: tensor 't' misses"),
    "far": (head(tensors=1) + tensor(1, offset=HUGE), "cut short: tensor 't' misses"),
    "unknown": (head(tensors=1) + tensor(32, kind=999), "is of type 999"),
    "rows": (head(tensors=1) + tensor(33, kind=8), "33 values, and Q8_0 stores 32 at a time"),
    "same": (head(tensors=2) + 2 * tensor(1) + bytes(64), "tensor 't' is in it twice"),
    "no model": (head(), "general.architecture is missing"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_at_once(tmp_path: Path, name: str) -> None:
    content, problem = DAMAGED[name]
    file = tmp_path / "toy.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=problem) as caught:
        load(file, device="cpu")
    assert "\x1b" not in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "toy.gguf").read_bytes()
    for size in [*range(4, 3000, 97), *range(3000, len(content), len(content) // 20), len(content) - 40]:
        (tmp_path / "cut.gguf").write_bytes(content[:size])
        with pytest.raises(ModelError, match="cut short"):
            load(tmp_path / "cut.gguf", device="cpu")


def test_the_content_tells_what_a_file_is(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf").rename(tmp_path / "blob")
    assert load(file, device="cpu").name == "blob"
    assert kind_of(file) is not None


def test_a_file_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "toy.gguf")
    asked = []

    def download(*names: str, **_: Any) -> str:
        asked.append(names)
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert load("owner/toy-GGUF/toy.Q8_0.gguf", device="cpu").name == "owner/toy-GGUF/toy.Q8_0.gguf"
    assert asked == [("owner/toy-GGUF", "toy.Q8_0.gguf")]


def test_a_request_is_checked_without_torch(tmp_path: Path) -> None:
    """The command line checks requests before it imports torch; for a GGUF file it converts the file first."""
    file = write_gguf(tmp_path / "toy.gguf")
    code = "import sys; from pardec.models.loading.kinds import kind_of; print(kind_of(sys.argv[1]).positions)"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.returncode) == ("128\n", 0), done.stderr


# --- every key that llama.cpp knows is followed, refused by name, or has no effect there ---


def refusals(folder: Path, family: str, keys: list[str], value: Any) -> dict[str, str]:
    """The error for a file that has the key, by key; empty if the file is read."""
    header = read_header(write_gguf(folder / "plain.gguf", family=family))
    said = {}
    for key in keys:
        changed = type(header)(header.file, header.content, {**header.metadata, key: value}, header.tensors)
        try:
            describe(changed)
        except ModelError as error:
            said[key] = str(error)
        else:
            said[key] = ""
    return said


@pytest.mark.parametrize("value", [3, 2.5, [1, 2]])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_keys_that_change_the_output_are_refused_by_name(tmp_path: Path, family: str, value: Any) -> None:
    known = known_keys(read_header(write_gguf(tmp_path / "toy.gguf")))
    own = [key.removeprefix("{arch}.") for key in known if key.startswith("{arch}.")]
    others = [key for key in known if key.startswith("tokenizer.")]
    keys = [f"{family}.{key}" for key in own if key not in FOLLOWED | IGNORED | {"attention.causal"}]
    handled = TOKENIZER_FOLLOWED | TOKENIZER_IGNORED
    keys += [key for key in others if key.removeprefix("tokenizer.") not in handled and "{" not in key]
    assert len(keys) > 40
    for key, text in refusals(tmp_path, family, keys, value).items():
        assert f"{key} is" in text, key


def test_keys_that_are_off_or_unknown_change_nothing(tmp_path: Path) -> None:
    plain = logits(pardec.load(write_gguf(tmp_path / "plain.gguf"), device="cpu", dtype="float32"))
    fields: dict[str, Any] = {f"llama.{key}": 3 for key in IGNORED}
    fields |= {"llama.logit_scale": 1.0, "llama.attention.scale": 0.0, "llama.attention.causal": True}
    fields |= {"llama.expert_count": 0, "llama.rope.scaling.attn_factor": 1.0, "llama.of_nobody": 5.0}
    fields |= {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0, "general.quantized_by": "me"}
    fields |= {"tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.scores": [1.0, 2.0]}
    file = write_gguf(tmp_path / "toy.gguf", metadata=fields)
    assert torch.equal(logits(pardec.load(file, device="cpu", dtype="float32")), plain)


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0, "rope.scaling.type": "linear"}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 0.0}, None),
    ],
)
def test_a_factor_without_a_kind_scales_positions(tmp_path: Path, fields: dict[str, Any], factor: float | None) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata={f"llama.{key}": value for key, value in fields.items()})
    rope = load(file, device="cpu").config["rope_parameters"]
    assert rope.get("factor") == factor
    assert rope["rope_type"] == ("default" if factor is None else "linear")


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_flags_of_decoding_have_to_be_those_of_the_architecture(tmp_path: Path, family: str) -> None:
    masked = not ARCHITECTURES[family].causal
    for key, wrong, right in (
        (f"{family}.attention.causal", masked, not masked),
        ("diffusion.shift_logits", family != "dream", family == "dream"),
    ):
        if not masked and key.startswith("diffusion"):
            continue
        for value in (wrong, right):
            file = tmp_path / f"{value}.gguf"
            if ARCHITECTURES[family].expert_width:
                header = read_header(write_experts(file, family, {"": "F32"}))
            elif masked:
                published = pardec.load(f"tiny-{family}", device="cpu")
                header = read_header(write_embedded_gguf(file, published.path, family))
            else:
                header = read_header(write_gguf(file, family=family))
            changed = type(header)(header.file, header.content, {**header.metadata, key: value}, header.tensors)
            if value == right:
                describe(changed)
            else:
                with pytest.raises(ModelError, match=f"{key} is {value}"):
                    describe(changed)


def test_a_tokenizer_that_does_not_say_how_it_splits_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata={"tokenizer.ggml.pre": None})
    with pytest.raises(ModelError, match=r"lacks tokenizer\.ggml\.pre") as error:
        load(file, device="cpu")
    assert "gguf-new-metadata --pre-tokenizer" in str(error.value.hint)
    file = write_gguf(tmp_path / "other.gguf", metadata={"tokenizer.ggml.pre": "default"})
    with pytest.raises(ModelError, match=r"'default' \(tokenizer\.ggml\.pre\), which is not supported"):
        load(file, device="cpu")


def with_tokens(file: Path, more: dict[str, int]) -> Path:
    """Writes a file with further tokens of these types."""
    fields = tokenizer_fields()
    tokens = [*fields["tokenizer.ggml.tokens"], *more]
    types = [*fields["tokenizer.ggml.token_type"], *more.values()]
    new: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return write_gguf(file, metadata=new, changes={"vocab_size": len(tokens)})


def test_unused_tokens_print_as_nothing_and_no_text_has_them(tmp_path: Path) -> None:
    own = pardec.load(with_tokens(tmp_path / "toy.gguf", {"[PAD268]": 5, "<|unknown|>": 2}), device="cpu").tokenizer
    at = len(TOKENS)
    assert own.decode([at]) == ""
    assert own.decode([40, at, 41]) == own.decode([40, 41])
    assert at not in own.encode("a [PAD268] b")
    assert own.decode(own.encode("a [PAD268] b")) == "a [PAD268] b"
    assert own.encode("<|unknown|>") == [at + 1]
    assert own.decode([at + 1], skip_special_tokens=True) == ""


def test_the_bytes_of_tokens_are_known_after_an_unused_one(tmp_path: Path) -> None:
    own = pardec.load(with_tokens(tmp_path / "toy.gguf", {"[PAD268]": 5, "zz": 1}), device="cpu").tokenizer
    assert TokenBytes(own, len(TOKENS) + 3).tokens[-3:] == [b"", b"zz", b""]


def test_an_end_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    plain = load(write_gguf(tmp_path / "plain.gguf"), device="cpu").tokenizer.encode("the")
    for adds_bos in (True, False):
        flags = {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": adds_bos}
        own = load(write_gguf(tmp_path / f"{adds_bos}.gguf", metadata=flags), device="cpu").tokenizer
        assert own.encode("the") == [*([1] if adds_bos else []), *plain, 2]
        assert own.encode("the", add_special_tokens=False) == plain


@pytest.mark.parametrize(
    ("fields", "ends"),
    [({"eot_token_id": 7}, (2, 7, 0)), ({"eos_token_id": 0, "fim_pad_token_id": 9}, (0, 9, 2))],  # 2 is <|im_end|>
    ids=str,
)
def test_tokens_that_end_a_turn_or_a_gap_end_a_text(
    tmp_path: Path, fields: dict[str, int], ends: tuple[int, ...]
) -> None:
    metadata = {f"tokenizer.ggml.{name}": number for name, number in fields.items()}
    file = write_gguf(tmp_path / "toy.gguf", metadata=metadata)
    assert load(file, device="cpu").decoding_config.eos_ids == ends


def test_an_end_of_text_ends_a_chat_models_answer_too(tmp_path: Path) -> None:
    """As in llama.cpp: by the token's text, whatever its type; Qwen's and Llama's chat models name another token."""
    fields = tokenizer_fields()
    tokens = [*fields["tokenizer.ggml.tokens"][:-1], "<|end_of_text|>"]
    types = [1, *fields["tokenizer.ggml.token_type"][1:-1], 1]
    new: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    model = load(write_gguf(tmp_path / "toy.gguf", metadata=new), device="cpu")
    last = len(tokens) - 1
    assert model.decoding_config.eos_ids == (2, 0, last)  # <|im_end|>, <|endoftext|> and the last one
    assert model.tokenizer.encode("<|end_of_text|>", add_special_tokens=False) == [last]
    assert model.tokenizer.decode([0, 40, last], skip_special_tokens=True) == model.tokenizer.decode([40])


@pytest.mark.parametrize("texts", [("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"), ("[PAD]", "<reponame>", "<eos>")])
def test_a_text_ends_at_tokens_that_end_a_gap_by_their_text(tmp_path: Path, texts: tuple[str, ...]) -> None:
    """As in llama.cpp: the files of Qwen's models name no ids for filling gaps."""
    at = len(TOKENS)
    model = load(with_tokens(tmp_path / "toy.gguf", dict.fromkeys(texts, 4)), device="cpu")
    assert model.decoding_config.eos_ids == (2, 0, at, at + 1, at + 2)
    assert model.tokenizer.decode([40, at], skip_special_tokens=True) == model.tokenizer.decode([40])


def test_an_id_that_ends_a_gap_counts_before_texts(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", metadata=gap_tokens("<|file_sep|>", {"fim_sep_token_id": 9}))
    assert load(file, device="cpu").decoding_config.eos_ids == (2, 9, 0)


def gap_tokens(last: str, ids: dict[str, int]) -> dict[str, Any]:
    """Metadata with this text of the last token, and these ids."""
    tokens = [*TOKENS[:-1], last]
    return {"tokenizer.ggml.tokens": tokens} | {f"tokenizer.ggml.{name}": number for name, number in ids.items()}


@pytest.mark.parametrize("end", ["bos", "eos"])
@pytest.mark.parametrize("number", [None, 100_000])
def test_a_token_to_add_that_the_file_does_not_have_is_refused(tmp_path: Path, end: str, number: int | None) -> None:
    flags = {f"tokenizer.ggml.add_{end}_token": True, f"tokenizer.ggml.{end}_token_id": number}
    file = write_gguf(tmp_path / "toy.gguf", metadata=flags)
    with pytest.raises(ModelError, match=rf"add_{end}_token is true, and tokenizer\.ggml\.{end}_token_id") as error:
        load(file, device="cpu")
    assert f"--special-token-by-id {end} ID" in str(error.value.hint)
