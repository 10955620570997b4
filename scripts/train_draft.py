"""Train a drafter that reads a target's hidden states, seeded and resumable.

    python scripts/train_draft.py tiny-llama --kind medusa --task arithmetic,lists,records --minutes 10
    python scripts/train_draft.py SmolLM2-135M-Instruct.Q4_1.gguf --kind eagle --vocab 8192 --minutes 60

Without texts the target writes them first, in the user's place as well (Magpie), which takes longer than the training.
Texts, the target's states of them and the run are stored below --state, and a command continues from what it finds
there.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from text_training.options import refuse_options_of_others  # noqa: E402
from until_done import until_done  # noqa: E402

import pardec  # noqa: E402
from pardec.training.losses import LOSSES  # noqa: E402
from pardec.training.networks import KINDS  # noqa: E402
from pardec.training.run import RATE, Plan, Run, prepare  # noqa: E402
from pardec.training.served import served  # noqa: E402
from pardec.training.texts import Writing, network_of, rows, write  # noqa: E402

SHAPE = (  # options that are named like those of a network
    *("vocab", "layers", "mlp_width", "kv_heads", "heads", "rank", "block", "mask_id", "unroll", "decay"),
    *("prompt_share", "dropout", "start", "seed", "taps", "ramp"),
)

OF_KINDS = {  # options that only some kinds have
    "layers": ("medusa", "dflash"),
    "mlp_width": ("eagle", "mtp", "dflash"),
    "kv_heads": ("eagle", "mtp", "dflash", "kangaroo"),
    "taps": ("eagle", "mtp", "dflash", "kangaroo"),
    "heads": ("medusa", "hydra", "prompts", "idlm"),
    "rank": ("idlm",),
    "block": ("dflash",),
    "unroll": ("eagle", "mtp"),
    "ramp": ("eagle", "mtp"),
    "mask_id": ("dflash", "idlm"),
    "own_head": ("eagle",),
}


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def layer_numbers(text: str) -> tuple[int, ...]:
    """Layers such as 1-14-26."""
    return tuple(int(layer) for layer in text.split("-"))


def shares(text: str) -> tuple[float, float]:
    """Two shares of the run such as 0.3-0.7."""
    begin, end = (float(share) for share in text.split("-"))
    if not 0 <= begin <= end <= 1:
        raise argparse.ArgumentTypeError(f"must be two rising shares of 0 to 1, such as 0.3-0.7, got {text}")
    return begin, end


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target", help="embedded name, folder, file or hub id")
    parser.add_argument("--kind", required=True, choices=tuple(KINDS))
    texts = parser.add_argument_group("texts")
    texts.add_argument("--rows", type=Path, nargs="+", default=[], help="texts that the target wrote")
    texts.add_argument(
        "--task", default="", help="tasks whose training problems are the prompts, such as arithmetic,lists"
    )
    texts.add_argument("--prompts", type=Path, help='prompts, one {"prompt": text} per line')
    texts.add_argument("--texts", type=whole, default=4000, help="texts to write, without --rows")
    texts.add_argument("--long", type=float, default=0.0, help="share of prompts that ask about several passages")
    texts.add_argument("--at-once", type=whole, default=96, help="texts to write at once: 1000 or more on a GPU")
    texts.add_argument(
        "--longest", type=whole, default=600, help="most tokens per text; longer prompts lose their beginning"
    )
    shape = parser.add_argument_group("network")
    shape.add_argument("--vocab", type=whole, help="draft only this many of the commonest ids")
    shape.add_argument("--layers", type=whole, help="dflash: layers; medusa: blocks per head (default 1)")
    shape.add_argument("--mlp-width", type=whole)
    shape.add_argument("--kv-heads", type=whole)
    shape.add_argument("--taps", type=layer_numbers, help="layers of the target that are read, such as 1-14-26")
    shape.add_argument("--heads", type=whole, help="heads (medusa, hydra), vectors (prompts), masks (idlm); default 4")
    shape.add_argument("--rank", type=whole, help="idlm: rank of the LoRA (default 32)")
    shape.add_argument("--block", type=whole, help="dflash: tokens per block, the known one included (default 8)")
    shape.add_argument("--unroll", type=whole, help="eagle: steps of training-time test (default 4)")
    shape.add_argument("--mask-id", type=int, help="dflash, idlm: the target's id of a mask token")
    shape.add_argument("--own-head", action="store_true", help="eagle: train a head instead of using the target's")
    shape.add_argument(
        "--start", choices=("target", "linear", "random"), default="target", help="how weights are initialized"
    )
    run = parser.add_argument_group("run")
    run.add_argument("--loss", default="fkl", help=f"one of {', '.join(LOSSES)}; jsd:0.5 and lk_hybrid:3 take a number")
    run.add_argument("--decay", type=float, default=0.8, help="factor of the loss from each depth to the next")
    run.add_argument("--minutes", type=float, help="wall-clock length of the training, resumed parts included")
    run.add_argument("--steps", type=whole, help="length in steps, in place of --minutes")
    run.add_argument("--batch", type=whole, default=3000, help="tokens per step")
    run.add_argument("--lr", type=float, help="peak learning rate")
    run.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    run.add_argument("--weight-decay", type=float, default=0.02)
    run.add_argument("--dropout", type=float, default=0.0)
    run.add_argument(
        "--ramp",
        type=shares,
        help="eagle: shares of the run between which unrolled steps are added (default 0.3-0.7)",
    )
    run.add_argument(
        "--prompt-share", type=float, default=0.1, help="share of the prompts' positions that count in the loss"
    )
    run.add_argument(
        "--init", help="what to start from: the state folder of a run, or an exported drafter (folder or embedded name)"
    )
    run.add_argument("--every", type=float, default=3.0, help="minutes between measurements and exports")
    run.add_argument("--validation", type=int, default=64, help="texts that are held out")
    run.add_argument("--drafts", type=whole, default=5, help="tokens per draft when the drafter is measured")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--device", default="auto", help="device of the target and the training")
    run.add_argument("--dtype", default="auto", help="dtype of the target")
    run.add_argument("--online", action="store_true", help="store no states: run the target over each batch, for GPUs")
    run.add_argument("--state", type=Path, help="folder of texts, states and runs (default runs/<target>)")
    run.add_argument("--out", type=Path, help="export folder (default models/embedded/drafters/<target>-<kind>)")
    run.add_argument(
        "--name", help="name of the run and of its folder below --state (default: that of the export folder)"
    )
    run.add_argument("--target-name", help="name of the target in the card")
    run.add_argument("--target-path", help="path of the target in the config")
    return parser


def start(given: argparse.Namespace) -> Run:
    """Texts, states, and the run."""
    torch.set_num_threads(1)
    model = pardec.load(given.target, device=given.device, dtype=given.dtype)
    name = given.target_name or model.name
    state = given.state or ROOT / "runs" / name
    out = given.out or ROOT / "models" / "embedded" / "drafters" / f"{name}-{given.kind}"
    target = network_of(model)
    if given.rows:
        files = served(target, given.rows)
    else:
        path = state / "texts.jsonl"
        tasks = [task for task in given.task.split(",") if task]
        how = Writing(path, given.texts, given.seed, given.at_once, long=given.long, tasks=tasks)
        write(model, replace(how, prompts=given.prompts))
        files = {str(path): list(rows([path]))}
    shape = {option: getattr(given, option) for option in SHAPE}
    shape["tied"] = False if given.own_head else None
    plan = Plan(
        kind=given.kind,
        name=out.name,
        out=out,
        state=state / (given.name or out.name),
        loss=given.loss,
        steps=given.steps,
        minutes=given.minutes,
        batch=given.batch,
        rate=given.lr or RATE[given.kind],
        optimizer=given.optimizer,
        weight_decay=given.weight_decay,
        seed=given.seed,
        every=given.every,
        validation=given.validation,
        drafts=given.drafts,
        init=given.init,
        target_name=name,
        target_path=given.target_path or name,
    )
    chosen = {option: value for option, value in shape.items() if value is not None}
    return prepare(target, files, plan, chosen, folder=state, longest=given.longest, online=given.online)


def main(argv: list[str] | None = None) -> None:
    options = parser()
    given = options.parse_args(argv)
    if (given.minutes is None) == (given.steps is None):
        options.error("give one of --minutes and --steps")
    if sum(map(bool, (given.rows, given.task, given.prompts))) > 1:
        options.error("give one of --rows, --task and --prompts")
    refuse_options_of_others(options, given, "kind", OF_KINDS)
    until_done(lambda: start(given))


if __name__ == "__main__":
    main()
