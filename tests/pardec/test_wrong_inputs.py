"""Common typing mistakes, command by command: one line says what is wrong, one says what would work."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pardec.cli import run

ROOT = Path(__file__).resolve().parents[2]
CAPTION = '"a small red circle left of a large blue square on grey"'
ASK = "generate tiny-dream -p x"
TELL = "generate tiny-llama -p x"
DRAW = "image tiny-mar --class 1 -o x.png"
RATE = "compare tiny-dream --task arithmetic -s threshold"
FILE = "compare tiny-dream --prompts ok.txt -s threshold"
TUNE = "tune tiny-dream --task arithmetic"
TIME = "bench decode tiny-dream"


def lines(table: dict[str, str]) -> list[str]:
    """The command lines: each begins with a key and ends with one of the parts of its value, which bars separate."""
    return [f"{start} {end}".strip() for start, ends in table.items() for end in map(str.strip, ends.split("|"))]


# What can be told without torch: names, words, ranges, and what config.json and the cards say.
EARLY = lines(
    {
        "": "nocommand | --bogus | env --jsn | env extra | view | tune | compare",
        "generate": """ | tiny-dreem -p x | "" -p x | ./nowhere -p x | ~/nowhere -p x | notes.md -p x | folder -p x
            | tiny-llamagen -p x | tiny-mar -p x | tiny-dream -p "" | tiny-dream -p "  " """,
        "generate tiny-dream --prompts": """nowhere.txt | empty.txt | number.jsonl | torn.jsonl | latin.txt
            | folder | ok.txt -p x""",
        ASK: f"""-n 0 | -n -5 | -n 1.5 | -n many | -n 512 | -n 99999999999 | -n 99999999999999999999999999
            | --block-length 0 | --block-length 65 | -n 8 --block-length 9 | --min-new-tokens 9 -n 8
            | --temperature -1 | --temperature hot | --temperature nan | --top-k 0 | --top-p 0 | --top-p 1.5
            | --cfg -1 | --overwrite | --in-order
            | --logprobs 2 | --seed x | --batch-size 0 | --workers 0 | --executor rya | --tp | --tp --executor ray
            | --device gpu | --device "cuda:-1" | --device meta | --device-map atuo | --dtype int3 | --dtype float64
            | --quantize int2 | --quantize int8 --device-map auto | --mask-id 99999 | --mask-id 361 | --mask-id -1
            | --allowed nowhere.json | --allowed notes.md | --allowed letters.json | --bogus | extra
            | -s "" | -s "threshold+" | -s "threshold@" | -s "threshold@dual@dkv" | -s "threshold:tau"
            | -s "threshold:=3" | -s thresold | -s threshold:tua=0.9 | -s threshold:tau=abc | -s credit:free=maybe
            | -s sequential@dkv:settle=maybe | -s preset:nobody | -s lookup | -s mar | -s threshold+fixed
            | -s {"+".join(["threshold"] * 999)}""",
        TELL: """--block-length 9 | --cfg 2 | --mask-id 4 | -s threshold | -s model:name=nobodys
            | -s lookup+recycling""",
        "chat": """tiny-dreem | tiny-llamagen | folder | tiny-dream -n 0 | tiny-dream -s thresold
            | tiny-dream -s lookup | tiny-dream --mask-id 361 | tiny-llama --block-length 9""",
        "image": """ | tiny-dream -p x -o x.png | tiny-dreem -p x -o x.png | folder --class 1 -o x.png
            | tiny-mar --class 1 -o x.bmp | tiny-mar -p "a cat" -o x.png | tiny-mar --class 99 -o x.png
            | tiny-mar --class -2 -o x.png | tiny-mar --class x -o x.png""",
        "image tiny-llamagen": f"""-o x.png | -p {CAPTION} | -p "" -o x.png | -p cat -o x.png | --class 3 -o x.png
            | -p x --class 3 -o x.png | -p {CAPTION} -p 'a mauve cat' -o x.png
            | -p {CAPTION} --negative-prompt mauve --cfg 2 -o x.png""",
        DRAW: "--seeds 1,x | --seed 1 --seeds 1 | --temperature -1 | -s sjd | -s cspd:draft=nobodys",
        "compare": """tiny-dream --task arithmetics -s threshold | tiny-dreem --task arithmetic -s threshold
            | tiny-dream --task arithmetic -s thresold | tiny-dream --task arithmetic -s lookup
            | tiny-dream --task captions -s threshold | tiny-dream --prompts nowhere.jsonl -s threshold
            | tiny-llamagen --task arithmetic -s sjd | tiny-llamagen --task classes -s sjd
            | tiny-mar --task captions -s mar | folder --task arithmetic -s threshold""",
        RATE: """--resume | --limit 0 | --seeds x | --executor rya | --device gpu | -n 99999999999 | --temperature -2
            | --mask-id 361 | --split test""",
        FILE: "--scorer nobody | --scorer leaves.py:score | --scorer notes.md:score | --scorer nowhere.py:score",
        "tune tiny-dream": "--task arithmetics | --task captions | --prompts ok.txt --scorer nobody",
        TUNE: """--resume | --max-drop -1 | --budget 0 | -s thresold | --block-length 0 | --executor rya
            | --mask-id 361""",
        "tune tiny-dreem": "--task arithmetic",
        "list": " | sampler | samplers --stage selekt | samplers --family mask | models --markdown",
        "show": " | thresold | preset:nobody",
        "bench": " | decod | decode | decode tiny-dreem | decode --shape llada-9b | kernels --dtype int3",
        TIME: """--batch x | --batch 0 | --batch 99999999999 | --context -1 | -s thresold | --device gpu
            | --dtype int3 | --pairs 0 | --prompts nowhere.txt | --top-p 7""",
    }
)
# The place where results are to go.
EARLY += lines(
    {
        f"{ASK} -o": f"""ok.txt | ok.txt/x.jsonl | ok.txt/x.json | ok.txt/deep/x | /proc/x.jsonl | /proc/x/y.json
            | folder.jsonl | folder.json | /dev/null/x | {"n" * 300}.jsonl | nobody""",
        DRAW: """-o folder.png | -o ok.txt/x.png | --each ok.txt | --each ok.txt/deep | --save ok.txt/x
            | --save nobody""",
        f"{RATE} --out": "ok.txt | ok.txt/run | /proc/run",
        f"{TUNE} --out": "ok.txt",
        "bench": "decode tiny-dream -o folder | decode tiny-dream -o ok.txt/x.json | kernels -o folder",
        "view letters.json": "--html folder | --png ok.txt/x.png | --gif /proc/x.gif",
    }
)
# What takes torch, a model or a file that has to be opened.
LATE = lines(
    {
        ASK: """-s threshold:tau=7 | -s threshold+fixed | -s dual | -s threshold@eos | -s threshold@block
            | -s learned:filter=nobody | -s fixed:steps=0 | --device cuda:99 | --device vulkan | --quantize fp8
            | --cuda-graphs | --executor torchrun""",
        TELL: """-s sequential@dual | -s model:name=tiny-llama-draft+template:widths=65536 | -s model
            | -s lookup+chain | -s greedy --temperature 1 | -s layerskip:ratio=9""",
        "generate": "owner/name -p x --offline",
        "image tiny-llamagen": f"--text-encoder tiny-llamagen -p mauve -o x.png | -p {CAPTION} -o x.bmp",
        DRAW: """--decoder nowhere.ckpt | --grid 0x2 | --grid big | --num-images 4 --grid 1x2 | --seeds 1,2
            | --top-k 3 | -s mar:steps=0""",
        "compare": "tiny-dream | tiny-dream --task arithmetic",
        RATE: "-s threshold | --seeds 0,0 | --scorer exact | --cost-ratio -1",
        "tune tiny-dream": "",
        TUNE: "--cost tme | --cache thresold",
    }
)
# What is the fault of a file: exit code 1.
FAULTY = lines(
    {
        "generate": "torn -p x | list -p x | nobody -p x | weightless -p x",
        "view": "nowhere.json | letters.json | latin.txt",
    }
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that each have one fault."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "stdin", None)
    for name, text in {
        "empty.txt": "",
        "ok.txt": "Tom has 3 cups.\n",
        "notes.md": "x",
        "leaves.py": "raise SystemExit(3)",
        "number.jsonl": '{"prompt": 3}\n',
        "torn.jsonl": "{oops\n",
        "letters.json": '{"a": [1]}',
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    configs = {"torn": "{", "list": "[]", "nobody": '{"model_type": "nobody"}'}
    configs["weightless"] = json.dumps({"model_type": "llama", "vocab_size": 9, **shape})
    for name in ("folder.json", "folder.jsonl", "folder.png"):
        (tmp_path / name).mkdir()
    for name in ("folder", *configs):
        (tmp_path / name).mkdir()
    for name, config in configs.items():
        (tmp_path / name / "config.json").write_text(config)
    return tmp_path


def refused(line: str, code: int, found: int, out: str, err: str) -> None:
    said = [text for text in err.splitlines() if text.strip() and not text.startswith(("tiny-", "Failed to load"))]
    assert (found, out) == (code, ""), (line, err)
    assert len(said) == 2, (line, err)
    assert said[0].startswith("error: "), (line, err)
    assert not said[1].startswith("error: ")
    assert "Traceback" not in err
    assert "this is a bug" not in err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", [*LATE, *FAULTY])
def test_what_takes_a_look_at_a_model_or_a_file(here: Path, capfd: pytest.CaptureFixture[str], line: str) -> None:
    found = run(shlex.split(line))
    refused(line, 1 if line in FAULTY else 2, found, *capfd.readouterr())
    assert sorted(path.name for path in here.glob("x.*")) == []


def test_a_hundred_wrong_inputs_are_told_before_torch_is_imported(here: Path) -> None:
    script = """
import io, json, shlex, sys
from contextlib import redirect_stderr, redirect_stdout
from pardec.cli import run

def told(words):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    heavy = sorted({"torch", "transformers", "diffusers", "accelerate"} & set(sys.modules))
    return [code, out.getvalue(), err.getvalue(), heavy]

sys.stdin = None
print(json.dumps([told(shlex.split(line)) for line in json.loads(sys.argv[1])]))
"""
    shown = [f"list {kind}" for kind in ("samplers", "models", "tasks", "presets")]
    shown += [f"show {name}" for name in ("threshold", "tiny-dream", "arithmetic", "preset:llada", "sequential")]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([*shown, *EARLY])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(EARLY) > 100
    for line, (code, out, err, heavy) in zip([*shown, *EARLY], found, strict=True):
        assert heavy == [], line
        if line in shown:
            assert (code, err) == (0, ""), line
            assert out, line
        else:
            refused(line, 2, code, out, err)
