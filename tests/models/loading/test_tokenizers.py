from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import sys
import types

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from pardec.models.errors import ModelError
from pardec.models.files.tokenizers import load_tokenizer

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def fast(folder, **settings):
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "<mask>": 3, "<eos>": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<mask>", "<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_level(folder, **settings):
    """vocab.json and merges.txt of a byte-level BPE, as in Dream's repositories."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    vocabulary["ab"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    added = {}
    for content in ("<|endoftext|>", "<|im_end|>", "<|mask|>"):
        entry = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added[str(len(vocabulary) + len(added))] = entry | {"special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added} | settings))
    return {entry["content"]: int(key) for key, entry in added.items()}


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None


def test_a_fast_tokenizer_comes_with_its_template(tmp_path):
    folder = fast(tmp_path, tokenizer_class="PreTrainedTokenizerFast", eos_token="<eos>", chat_template=TEMPLATE)
    tokenizer = load_tokenizer(folder)
    assert tokenizer("a b")["input_ids"] == [1, 2]
    assert tokenizer.eos_token_id == 4
    chat = [{"role": "user", "content": "a"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<user>a"


def test_the_dropout_of_training_is_off(tmp_path):
    model = models.BPE({"a": 0, "b": 1, "ab": 2, "abab": 3}, [("a", "b"), ("ab", "ab")], dropout=0.5)
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.warns(UserWarning, match=r"tokenizer.json has dropout=0.5, .* it is off"):
        tokenizer = load_tokenizer(tmp_path)
    assert [tokenizer("abab")["input_ids"] for _ in range(30)] == [[3]] * 30


def test_a_text_longer_than_the_context_has_no_warning_of_transformers(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    folder = fast(tmp_path, tokenizer_class="PreTrainedTokenizerFast", model_max_length=2)
    assert load_tokenizer(folder)("a b a")["input_ids"] == [1, 2, 1]
    assert not caplog.records
    assert AutoTokenizer.from_pretrained(folder)("a b a")["input_ids"] == [1, 2, 1]
    assert "longer than the specified maximum" in caplog.text


def test_remote_code_is_not_run_but_its_files_are_used(tmp_path):
    remote = {"auto_map": {"AutoTokenizer": ["remote.Tokenizer", None]}, "tokenizer_class": "DreamTokenizer"}
    folder = fast(tmp_path / "json", **remote, mask_token={"content": "<mask>"}, chat_template=TEMPLATE)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer("b")["input_ids"], tokenizer.mask_token_id) == ([2], 3)
    assert tokenizer.chat_template == TEMPLATE

    (tmp_path / "bpe").mkdir()
    added = byte_level(tmp_path / "bpe", **remote, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    (tmp_path / "bpe" / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = load_tokenizer(tmp_path / "bpe")
    ids = tokenizer("ab<|mask|>")["input_ids"]
    assert ids == [256, added["<|mask|>"]]
    assert tokenizer.decode(ids[:1]) == "ab"
    assert tokenizer.eos_token_id == added["<|endoftext|>"]
    assert tokenizer.chat_template == TEMPLATE


FILES = {
    "added_tokens_decoder": ("tokenizer_config.json", {"9": {"content": "<new>", "lstrip": True, "special": False}}),
    "extra_special_tokens": ("tokenizer_config.json", {"image_token": "<new>"}),
    "chat_template": (
        "tokenizer_config.json",
        [{"name": "default", "template": TEMPLATE}, {"name": "x", "template": ""}],
    ),
    "unk_token": ("special_tokens_map.json", "b"),
    "cls_token": ("special_tokens_map.json", "<new>"),
    "<new>": ("added_tokens.json", 9),
    "template": ("chat_template.jinja", TEMPLATE),
    "x": ("additional_chat_templates/x.jinja", TEMPLATE),
}


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("kind", ["json", "bpe"])
def test_all_files_beside_remote_code_are_read_as_they_are_without_it(tmp_path, kind, key):
    name, value = FILES[key]
    file, main = tmp_path / name, tmp_path / "tokenizer_config.json"
    if kind == "json":
        fast(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    else:
        byte_level(tmp_path, tokenizer_class="Qwen2Tokenizer")
        if key == "added_tokens_decoder":  # with the ids after those of the vocabulary
            value = {"260": value["9"]}
        elif name in ("special_tokens_map.json", "added_tokens.json"):  # read where there is no added_tokens_decoder
            main.write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    plain = known(load_tokenizer(tmp_path))
    file.parent.mkdir(exist_ok=True)
    held = json.loads(file.read_text()) if file.is_file() else {}
    both = {**held.get(key, {}), **value} if key == "added_tokens_decoder" else value
    file.write_text(value if file.suffix == ".jinja" else json.dumps({**held, key: both}))
    expected = known(AutoTokenizer.from_pretrained(tmp_path, local_files_only=True))
    assert expected != plain
    main.write_text(json.dumps({**json.loads(main.read_text()), "auto_map": {"AutoTokenizer": ["remote.T", None]}}))
    assert known(load_tokenizer(tmp_path)) == expected


def known(tokenizer):
    text = "a b <new> ab<|mask|>"
    ids = tokenizer(text)["input_ids"]
    return ids, tokenizer.decode(ids, skip_special_tokens=True), tokenizer.special_tokens_map, tokenizer.chat_template


def test_added_tokens_must_get_their_published_ids(tmp_path):
    byte_level(tmp_path, auto_map={"AutoTokenizer": ["remote.Tokenizer", None]})
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    entry = settings["added_tokens_decoder"].pop("257")
    settings["added_tokens_decoder"]["400"] = entry
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="have other ids than published"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_cannot_be_used_says_why(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["remote.T", None]}}))
    with pytest.raises(ModelError, match="remote code, which is not run") as error:
        load_tokenizer(tmp_path)
    assert "tokenizer.json" in str(error.value.hint)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer.json: "):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        *({"tokenizer_class": f"{name}Tokenizer"} for name in ("Llama", "Qwen2", "Gemma", "GPT2", "T5")),
        {"tokenizer_class": "LlamaTokenizerFast", "vocab.json": '{"a": 0}'},
        {"tokenizer_class": "GemmaTokenizer", "tokenizer_config.json.bak": "{}"},
        {"tokenizer_class": "LlamaTokenizer", "vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2\n"},
    ],
)
def test_a_tokenizer_whose_vocabulary_is_missing_is_refused(tmp_path, settings):
    """transformers makes one up, of three tokens: no text has ids of the model."""
    files = {name: settings[name] for name in settings if "." in name}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = {key: value for key, value in settings.items() if key not in files}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert len(AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)) < 200
    with pytest.raises(ModelError, match="there is no .*, which the class"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend", "Unknown", None])
def test_a_vocabulary_without_the_class_that_splits_text_is_refused(tmp_path, name):
    byte_level(tmp_path, **({"tokenizer_class": name} if name else {}))
    with pytest.raises(ModelError, match=f"neither these files nor tokenizer_class={name} say how text is split"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_is_split_by_the_class_that_is_named(tmp_path):
    """An end token without a type, which AutoTokenizer does not take: the files are read without it."""
    byte_level(tmp_path, tokenizer_class="GPT2TokenizerFast", eos_token={"content": "<|endoftext|>"})
    names = load_tokenizer(tmp_path)("it 12").tokens()
    vocabulary = {**json.loads((tmp_path / "vocab.json").read_text()), "Ġ1": 300, "Ġ12": 301}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ 1\nĠ1 2\n")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"added_tokens_decoder": {}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert names == ["i", "t", "Ġ", "1", "2"]
    assert load_tokenizer(tmp_path)("it 12").tokens() == ["i", "t", "Ġ12"]  # Qwen2 splits digits one by one


def test_a_tokenizer_that_differs_from_its_sentencepiece_model_is_refused(tmp_path, monkeypatch):
    class Model:
        def __init__(self, model_file):
            assert model_file == str(tmp_path / "tokenizer.model")

        def encode(self, text):
            return [7, *found(text)["input_ids"]] if prefix else found(text)["input_ids"]

    found = load_tokenizer(fast(tmp_path / "json", tokenizer_class="PreTrainedTokenizerFast"))
    module = types.ModuleType("sentencepiece", "")
    module.SentencePieceProcessor, module.__spec__ = Model, importlib.machinery.ModuleSpec("sentencepiece", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", module)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: found)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    prefix = False
    assert load_tokenizer(tmp_path) is found
    prefix = True
    with pytest.raises(ModelError, match=r"'Hello world 2024' has the ids \[.*\], and by tokenizer.model \[7, "):
        load_tokenizer(tmp_path)


def test_a_model_file_without_sentencepiece_names_the_package(tmp_path):
    if importlib.util.find_spec("sentencepiece") is not None:
        pytest.skip("sentencepiece is installed")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15")
    with pytest.raises(ModelError) as error:
        load_tokenizer(tmp_path)
    assert "pip install sentencepiece" in str(error.value.hint)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "merges.txt", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pointer", "link"])
def test_a_pointer_or_a_link_to_nothing_is_no_tokenizer_file(tmp_path, name, kind):
    """A link to nothing: a snapshot of the hub that was copied without its blobs."""
    file = fast(tmp_path, tokenizer_class="PreTrainedTokenizerFast") / name
    file.unlink(missing_ok=True)
    if kind == "link":
        file.symlink_to("../../blobs/0")
    else:
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match=f"{name} is a {kind} (of Git LFS|to a file)"):
        load_tokenizer(tmp_path)


def described(tokenizer):
    settings = {key: str(value) for key, value in tokenizer.init_kwargs.items() if key != "config"}
    text = "Nora has 12 cups. <mask> é <|im_end|>"
    return type(tokenizer), settings, tokenizer(text).input_ids, tokenizer.chat_template


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral", "gemma", "LLaDA", "gpt2", ""])
@pytest.mark.parametrize(
    "name", ["PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2TokenizerFast", "GemmaTokenizer", None]
)
def test_the_model_s_type_is_all_that_a_tokenizer_reads_of_its_config(tmp_path, model_type, name):
    folder = tmp_path / "model"
    settings = {"eos_token": "<eos>", "mask_token": "<mask>"} | ({"tokenizer_class": name} if name else {})
    fast(folder, **settings)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 5}))
    try:
        theirs = described(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except Exception:  # what they cannot load, tokenizer.json gives
        theirs = None
    ours = described(load_tokenizer(folder))
    assert theirs is None or ours == theirs
