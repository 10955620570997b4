"""`pardec chat`: a conversation with a model that has a chat template."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pardec.models.errors import PardecError, SpecError

from ..requests import preflight
from . import inputs
from . import options as o
from .common import say, show
from .wording import as_options

if TYPE_CHECKING:
    from collections.abc import Generator

    from pardec.samplers.events import Event

    from ..api import Model

HELP = "/reset starts the conversation over, /exit or Ctrl-D quits, Ctrl-C stops an answer"


@o.command
def chat(
    model: o.ModelName,
    *,
    system: o.System = None,
    quiet: o.Quiet = False,
    sampling: o.TextSampling,
    stop: o.Stop = None,
    seed: o.TurnSeed = 0,
    loading: o.CheckpointLoading,
) -> None:
    """Chat with a model; answers are printed as their text becomes final. In piped input, each line is a turn.

    pardec chat GSAI-ML/LLaDA-8B-Instruct -n 256 -s threshold:tau=0.9@dual

    /reset starts the conversation over, /exit or Ctrl-D quits, Ctrl-C stops an answer.
    """
    arguments: dict[str, Any] = dict(sampling)
    if stop:
        arguments["stop"] = inputs.read_stop(stop)
    load_arguments = {**o.to_arguments(loading), "images": False}
    kind = preflight.check(model, [sampling.get("sampler")], arguments, load_arguments, draws=False)
    preflight.check_parts(kind, arguments)

    from ..api import load  # imported here since it imports torch

    loaded = load(model, **load_arguments)
    check(loaded, model)
    if system is not None:
        check_system(loaded, system)
    conversation = Conversation(loaded, system, arguments, seed, quiet=quiet)
    say(f"{loaded.network.describe()}\n{HELP}", quiet=quiet)
    for line in lines():
        if line in ("/exit", "/quit"):
            break
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            say(f"unknown command {line.split()[0]}: {HELP}")
        else:
            conversation.turn(line)


def check(model: Model, name: str) -> None:
    """Refuses a model without a chat. Raises SpecError."""
    if model.imaging is not None:
        raise SpecError(f"{model.name} is an image model", hint=f'try "pardec image {name} -o out.png"')
    if not getattr(model.tokenizer, "chat_template", None):
        what = "tokenizer" if model.tokenizer is None else "chat template"
        raise SpecError(
            f"{model.name} has no {what}, so it cannot chat",
            hint=f'"pardec generate {name} -p ..." continues plain text; instruct models have a chat template',
        )


def check_system(model: Model, system: str) -> None:
    """Refuses a system message that the chat template leaves out. Raises SpecError."""
    question = [{"role": "user", "content": "Q"}]
    render = partial(model.tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    try:
        shown = render([{"role": "system", "content": system}, *question]) != render(question)
    except Exception:  # a template raises errors of any class; the first turn reports it
        return
    if not shown:
        raise SpecError(
            f"--system has no effect: the chat template of {model.name} leaves system messages out",
            hint="write it into your first message, and leave --system out",
        )


def lines() -> Iterator[str]:
    """The lines that are typed or piped in, without empty ones."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # enables line editing
    while True:
        try:
            line = input("> " if interactive and sys.stdout.isatty() else "").strip()
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:  # discards the unfinished line
            if not interactive:
                raise
            print()
            continue
        if line:
            yield line


class Conversation:
    """The messages so far."""

    def __init__(self, model: Model, system: str | None, arguments: Any, seed: int, *, quiet: bool) -> None:
        self.model, self.arguments, self.seed, self.quiet = model, arguments, seed, quiet
        self.begin = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Starts the conversation over."""
        self.messages = list(self.begin)
        self.turns = 0

    def turn(self, text: str) -> None:
        """Answers one turn. On a terminal, an error is printed and the turn is dropped."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            answer = self._answer(messages)
        except PardecError as error:
            if not sys.stdin.isatty():
                raise
            say("\n".join(filter(None, (f"error: {error}", error.hint, "/reset starts the conversation over"))))
            return
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        self.turns += 1

    def _answer(self, messages: list[dict[str, str]]) -> str:
        """Prints the answer as its text becomes final; after Ctrl-C, the printed part is the answer."""
        from pardec.samplers.events import RowFinished, Step
        from pardec.samplers.rng import row_seed

        from ..requests.settings import ignored_arguments

        call = self.model.prepare(messages, **self.arguments, seed=[row_seed(self.seed, self.turns)])
        ignored = ignored_arguments(self.arguments, call.settings)
        if ignored is not None and not self.turns:
            say(f"warning: {as_options(ignored, o.OPTIONS)}", quiet=self.quiet)
        texts, started = [], time.perf_counter()
        end: RowFinished | None = None
        with closing(cast("Generator[Event]", self.model.run(call, text=True))) as events:
            try:
                for event in events:
                    if isinstance(event, Step | RowFinished):
                        text = event.text if isinstance(event, RowFinished) else "".join(event.text or ())
                        texts.append(text or "")
                        show(texts[-1], end="")
                    end = event if isinstance(event, RowFinished) else end
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
        print(flush=True)
        self._report(call, end, time.perf_counter() - started)
        return "".join(texts)

    def _report(self, call: Any, end: Any, seconds: float) -> None:
        """Prints the cost of the answer, and why it is empty or cut."""
        from ..requests import answer_warnings

        if end is None:
            say("stopped", quiet=self.quiet)
            return
        tokens, generated = call.generated(0, end.tokens.tolist())
        cut = answer_warnings.is_cut({"tokens": tokens, "generated": generated, "finish": end.reason}, call.settings)
        more = f"; cut at {len(tokens)} tokens, a larger -n gives more" if cut else ""
        plural = "" if end.nfe == 1 else "s"
        say(f"{generated} tokens in {end.nfe} forward{plural}, {seconds:.1f} s{more}", quiet=self.quiet)
        reason = None if generated else answer_warnings.explain_empty(self.model, plain=False, way_out="")
        if reason is not None:
            say(f"warning: the answer is empty: {reason}", quiet=self.quiet)
