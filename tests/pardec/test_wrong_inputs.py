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
TUNE = "tune tiny-dream --task arithmetic"
TIME = "bench decode tiny-dream"

# What can be told without torch: names, words, ranges, and what config.json and the cards say.
EARLY = [
    "generate",
    "generate tiny-dreem -p x",
    'generate "" -p x',
    "generate ./nowhere -p x",
    "generate ~/nowhere -p x",
    "generate notes.md -p x",
    "generate tiny-llamagen -p x",
    "generate tiny-mar -p x",
    'generate tiny-dream -p ""',
    'generate tiny-dream -p "  "',
    "generate tiny-dream --prompts nowhere.txt",
    "generate tiny-dream --prompts empty.txt",
    "generate tiny-dream --prompts number.jsonl",
    "generate tiny-dream --prompts torn.jsonl",
    "generate tiny-dream --prompts latin.txt",
    "generate tiny-dream --prompts folder",
    f"{ASK} --prompts ok.txt",
    f"{ASK} -n 0",
    f"{ASK} -n -5",
    f"{ASK} -n 1.5",
    f"{ASK} -n many",
    f"{ASK} -n 512",
    f"{ASK} -n 99999999999",
    f"{ASK} -n 99999999999999999999999999",
    f"{ASK} --block-length 0",
    f"{ASK} --block-length 65",
    f"{ASK} -n 8 --block-length 9",
    f"{TELL} --block-length 9",
    f"{TELL} --cfg 2",
    f"{ASK} --temperature -1",
    f"{ASK} --temperature hot",
    f"{ASK} --temperature nan",
    f"{ASK} --top-k 0",
    f"{ASK} --top-p 0",
    f"{ASK} --top-p 1.5",
    f"{ASK} --cfg -1",
    f"{ASK} --seed x",
    f"{ASK} --batch-size 0",
    f"{ASK} --workers 0",
    f"{ASK} --executor rya",
    f"{ASK} --device gpu",
    f'{ASK} --device "cuda:-1"',
    f"{ASK} --device meta",
    f"{ASK} --dtype int3",
    f"{ASK} --dtype float64",
    f"{ASK} --quantize int2",
    f"{ASK} --allowed nowhere.json",
    f"{ASK} --allowed notes.md",
    f"{ASK} --allowed letters.json",
    f'{ASK} -s ""',
    f'{ASK} -s "threshold+"',
    f'{ASK} -s "threshold@"',
    f'{ASK} -s "threshold@dual@dkv"',
    f'{ASK} -s "threshold:tau"',
    f'{ASK} -s "threshold:=3"',
    f"{ASK} -s thresold",
    f"{ASK} -s threshold:tua=0.9",
    f"{ASK} -s threshold:tau=abc",
    f"{ASK} -s credit:free=maybe",
    f"{ASK} -s sequential@dkv:settle=maybe",
    f"{ASK} -s preset:nobody",
    f"{ASK} -s lookup",
    f"{ASK} -s mar",
    f"{TELL} -s threshold",
    f"{TELL} -s model:name=nobodys",
    f"{ASK} --bogus",
    f"{ASK} extra",
    f"{ASK} --tp --executor ray",
    f"{ASK} --tp",
    f"{ASK} --device-map atuo",
    f"{ASK} --min-new-tokens 9 -n 8",
    f"{ASK} -s threshold+fixed",
    f"{TELL} -s lookup+recycling",
    "chat tiny-dreem",
    "chat tiny-llamagen",
    "chat tiny-dream -n 0",
    "chat tiny-dream -s thresold",
    "chat tiny-dream -s lookup",
    "chat tiny-llama --block-length 9",
    "image tiny-mar --class 1 -o x.bmp",
    f"{RATE} --resume",
    f"{TUNE} --resume",
    "image",
    f"image tiny-llamagen -p {CAPTION}",
    "image tiny-llamagen -o x.png",
    'image tiny-llamagen -p "" -o x.png',
    "image tiny-llamagen --class 3 -o x.png",
    "image tiny-llamagen -p x --class 3 -o x.png",
    'image tiny-mar -p "a cat" -o x.png',
    "image tiny-mar --class 99 -o x.png",
    "image tiny-mar --class -2 -o x.png",
    "image tiny-mar --class x -o x.png",
    f"{DRAW} --seeds 1,x",
    f"{DRAW} --seed 1 --seeds 1",
    f"{DRAW} --temperature -1",
    f"{DRAW} -s sjd",
    f"{DRAW} -s cspd:draft=nobodys",
    "image tiny-dream -p x -o x.png",
    "image tiny-dreem -p x -o x.png",
    "compare",
    "compare tiny-dream --task arithmetics -s threshold",
    "compare tiny-dreem --task arithmetic -s threshold",
    "compare tiny-dream --task arithmetic -s thresold",
    "compare tiny-dream --task arithmetic -s lookup",
    f"{RATE} --limit 0",
    f"{RATE} --seeds x",
    f"{RATE} --executor rya",
    f"{RATE} --device gpu",
    f"{RATE} -n 99999999999",
    f"{RATE} --temperature -2",
    "tune",
    "tune tiny-dream --task arithmetics",
    "tune tiny-dreem --task arithmetic",
    f"{TUNE} --max-drop -1",
    f"{TUNE} --budget 0",
    f"{TUNE} -s thresold",
    f"{TUNE} --block-length 0",
    f"{TUNE} --executor rya",
    "list",
    "list sampler",
    "list samplers --stage selekt",
    "list samplers --family mask",
    "list models --markdown",
    "show",
    "show thresold",
    "show preset:nobody",
    "bench",
    "bench decode",
    "bench decode tiny-dreem",
    "bench decode --shape llada-9b",
    f"{TIME} --batch x",
    f"{TIME} --batch 0",
    f"{TIME} --context -1",
    f"{TIME} -s thresold",
    f"{TIME} --device gpu",
    f"{TIME} --dtype int3",
    f"{TIME} --pairs 0",
    "bench kernels --dtype int3",
    "bench decod",
    "view",
    "env --jsn",
    "env extra",
    "nocommand",
    "--bogus",
    "generate folder -p x",
    "chat folder",
    "image folder --class 1 -o x.png",
    "compare folder --task arithmetic -s threshold",
    "image tiny-llamagen -p cat -o x.png",
    f"image tiny-llamagen -p {CAPTION} -p 'a mauve cat' -o x.png",
    f"image tiny-llamagen -p {CAPTION} --negative-prompt mauve --cfg 2 -o x.png",
    f"{ASK} --quantize int8 --device-map auto",
    f"{ASK} -s {'+'.join(['threshold'] * 999)}",
    f"{ASK} --mask-id 99999",
    f"{TELL} --mask-id 4",
    "compare tiny-dream --task captions -s threshold",
    "compare tiny-dream --prompts ok.txt -s threshold --scorer nobody",
    "compare tiny-dream --prompts nowhere.jsonl -s threshold",
    "compare tiny-dream --prompts ok.txt -s threshold --scorer leaves.py:score",
    f"{ASK} --mask-id 361",
    f"{ASK} --mask-id -1",
    f"{RATE} --mask-id 361",
    f"{TUNE} --mask-id 361",
    "chat tiny-dream --mask-id 361",
    f"{RATE} --split test",
    "compare tiny-dream --prompts ok.txt -s threshold --scorer notes.md:score",
    "compare tiny-dream --prompts ok.txt -s threshold --scorer nowhere.py:score",
    "tune tiny-dream --prompts ok.txt --scorer nobody",
    "tune tiny-dream --task captions",
    "compare tiny-llamagen --task arithmetic -s sjd",
    "compare tiny-llamagen --task classes -s sjd",
    "compare tiny-mar --task captions -s mar",
    f"{TIME} --prompts nowhere.txt",
    f"{TIME} --batch 99999999999",
    f"{TIME} --top-p 7",
    # Where results are to go.
    f"{ASK} -o ok.txt/x.jsonl",
    f"{ASK} -o ok.txt/x.json",
    f"{ASK} -o ok.txt",
    f"{ASK} -o ok.txt/deep/x",
    f"{ASK} -o /proc/x.jsonl",
    f"{ASK} -o /proc/x/y.json",
    f"{ASK} -o folder.jsonl",
    f"{ASK} -o folder.json",
    f"{ASK} -o /dev/null/x",
    f"{ASK} -o {'n' * 300}.jsonl",
    f"{ASK} -o nobody",
    f"{DRAW} -o folder.png",
    f"{DRAW} -o ok.txt/x.png",
    f"{DRAW} --each ok.txt",
    f"{DRAW} --each ok.txt/deep",
    f"{DRAW} --save ok.txt/x",
    f"{DRAW} --save nobody",
    f"{RATE} --out ok.txt",
    f"{RATE} --out ok.txt/run",
    f"{RATE} --out /proc/run",
    f"{TUNE} --out ok.txt",
    f"{TIME} -o folder",
    f"{TIME} -o ok.txt/x.json",
    "bench kernels -o folder",
    "view letters.json --html folder",
    "view letters.json --png ok.txt/x.png",
    "view letters.json --gif /proc/x.gif",
]
# What takes torch, a model or a file that has to be opened; exit code 1 where it is the file that is at fault.
LATE = [
    (2, f"{ASK} -s threshold:tau=7"),
    (2, f"{ASK} -s threshold+fixed"),
    (2, f"{ASK} -s dual"),
    (2, f"{ASK} -s threshold@eos"),
    (2, f"{ASK} -s threshold@block"),
    (2, f"{ASK} -s learned:filter=nobody"),
    (2, f"{ASK} -s fixed:steps=0"),
    (2, f"{TELL} -s sequential@dual"),
    (2, f"{TELL} -s model:name=tiny-llama-draft+template:widths=65536"),
    (2, f"{TELL} -s model"),
    (2, f"{TELL} -s lookup+chain"),
    (2, f"{TELL} -s greedy --temperature 1"),
    (2, f"{TELL} -s layerskip:ratio=9"),
    (2, f"{ASK} --device cuda:99"),
    (2, f"{ASK} --device vulkan"),
    (2, f"{ASK} --quantize fp8"),
    (2, f"{ASK} --cuda-graphs"),
    (2, f"{ASK} --executor torchrun"),
    (2, "generate owner/name -p x --offline"),
    (1, "generate torn -p x"),
    (1, "generate list -p x"),
    (1, "generate nobody -p x"),
    (1, "generate weightless -p x"),
    (2, "image tiny-mar --class 1 -o x.png --decoder nowhere.ckpt"),
    (2, "image tiny-llamagen --text-encoder tiny-llamagen -p mauve -o x.png"),
    (2, f"{DRAW} --grid 0x2"),
    (2, f"{DRAW} --grid big"),
    (2, f"{DRAW} --num-images 4 --grid 1x2"),
    (2, f"{DRAW} --seeds 1,2"),
    (2, f"{DRAW} --top-k 3"),
    (2, f"{DRAW} -s mar:steps=0"),
    (2, f"image tiny-llamagen -p {CAPTION} -o x.bmp"),
    (2, "compare tiny-dream"),
    (2, "compare tiny-dream --task arithmetic"),
    (2, f"{RATE} -s threshold"),
    (2, f"{RATE} --seeds 0,0"),
    (2, f"{RATE} --scorer exact"),
    (2, f"{RATE} --cost-ratio -1"),
    (2, "tune tiny-dream"),
    (2, f"{TUNE} --cost tme"),
    (2, f"{TUNE} --cache thresold"),
    (1, "view nowhere.json"),
    (1, "view letters.json"),
    (1, "view latin.txt"),
]


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
@pytest.mark.parametrize(("code", "line"), LATE, ids=[line for _, line in LATE])
def test_what_takes_a_look_at_a_model_or_a_file(
    here: Path, capfd: pytest.CaptureFixture[str], code: int, line: str
) -> None:
    found = run(shlex.split(line))
    refused(line, code, found, *capfd.readouterr())
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
