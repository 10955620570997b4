const GIVEN = -1, NEVER = -2, SHOWN = 4;
const EXACT = { greedy: "exact: the tokens of sequential decoding", distribution: "exact: drawn from the law of sequential decoding" };

/** The player: one prompt, several runs side by side, a slider over forwards. `prompts` as pardec.views.replay makes them. */
function replay(root, prompts, scale) {
  const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map(e => [e.dataset.part, e]));
  const grounds = scale.grounds, inks = scale.inks;
  part.ramp.style.background = `linear-gradient(to right, ${grounds.join(",")})`;
  const chosen = new Set(prompts[0].runs.slice(0, SHOWN).map(run => run.name));
  let panels = [], timer = null;

  part.prompt.append(...prompts.map((held, at) => make("option", { value: at }, held.label)));
  const names = [...new Set(prompts.flatMap(held => held.runs.map(run => run.name)))];
  for (const name of names) {
    const box = make("input", { type: "checkbox", value: name });
    box.checked = chosen.has(name);
    box.addEventListener("change", () => { box.checked ? chosen.add(name) : chosen.delete(name); build(); });
    part.runs.append(make("label", {}, box, spec(name)));
  }
  part.runs.hidden = names.length < 2;
  part.choices.hidden = names.length < 2 && prompts.length < 2;

  const last = () => Number(part.slider.max), at = () => Number(part.slider.value);

  function build() {
    pause();
    const held = prompts[Number(part.prompt.value)], ended = panels.length === 0 || at() === last();
    const runs = held.runs.filter(run => chosen.has(run.name));
    part.asked.textContent = held.prompt;
    panels = runs.map(run => panel(run, grounds, inks));
    part.panels.replaceChildren(...panels.map(shown => shown.element));
    if (!panels.length) part.panels.append(make("p", { class: "soft" }, "No sampler chosen."));
    part.slider.max = Math.max(1, ...runs.map(run => run.nfe));
    if (ended) part.slider.value = part.slider.max;
    show();
  }

  function show() {
    part.at.textContent = `${at()} of ${last()}`;
    part.slider.setAttribute("aria-valuetext", `after forward ${at()} of ${last()}`);
    for (const shown of panels) shown.show(at());
  }

  function pause() {
    clearTimeout(timer);
    timer = null;
    part.play.textContent = "Play";
  }

  function tick() {
    timer = setTimeout(() => {
      part.slider.value = at() + 1;
      show();
      at() < last() ? tick() : pause();
    }, 1000 / Number(part.speed.value));
  }

  function toggle() {
    if (timer !== null) return pause();
    if (at() === last()) { part.slider.value = 0; show(); }
    part.play.textContent = "Pause";
    tick();
  }

  part.play.addEventListener("click", toggle);
  part.slider.addEventListener("input", () => { pause(); show(); });
  part.prompt.addEventListener("change", build);
  root.addEventListener("keydown", event => {
    if (event.key !== " " || event.target.closest("button, select, input:not([type=range])")) return;
    event.preventDefault();
    toggle();
  });
  build();
}

/** One run: its tokens, how far it is, what the token under the pointer or the focus tells. */
function panel(run, grounds, inks) {
  const final = Math.max(...run.steps, 0), read = run.texts.length;
  const whole = Math.max(...run.steps.slice(0, read), GIVEN) + 1;
  const tint = step => Math.round(final ? step / final * (grounds.length - 1) : 0);
  const count = make("span"), done = make("span", { class: "done" }), told = make("p", { class: "told" });
  const progress = make("progress", { max: Math.max(run.nfe, 1), "aria-label": `forwards of ${run.name}` });
  const box = make("div", { class: "tokens", role: "listbox", "aria-label": `tokens of ${run.name}`, tabindex: -1 });
  const tokens = run.steps.map((step, index) => {
    const tail = index >= read;
    const token = make("span", { class: tail ? "token tail" : "token", role: "option", "aria-selected": "false", tabindex: index ? -1 : 0 },
      tail ? "" : run.texts[index]);
    box.append(token);
    return token;
  });
  let now = 0;

  function describe(index) {
    const step = run.steps[index], name = index < read ? JSON.stringify(run.texts[index]) : "behind the end token";
    if (step === GIVEN) return `position ${index}: ${name}, given by the request`;
    if (step === NEVER) return `position ${index}: never asked for`;
    if (step >= now) return `position ${index}: still masked`;
    return `position ${index}: ${name}, committed in forward ${step + 1} of ${run.nfe}, confidence score ${run.scores[index]}`;
  }

  let pointed = -1;
  const point = index => {
    pointed = index;
    told.textContent = index < 0 ? "Point at a token, or reach it with the arrow keys." : describe(index);
  };
  const index = target => tokens.indexOf(target.closest(".token"));
  box.addEventListener("pointerover", event => index(event.target) >= 0 && point(index(event.target)));
  box.addEventListener("focusin", event => index(event.target) >= 0 && point(index(event.target)));
  box.addEventListener("keydown", event => {
    const from = index(event.target), end = tokens.length - 1;
    const to = { ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1, Home: 0, End: end }[event.key];
    if (to === undefined || from < 0) return;
    event.preventDefault();
    const next = Math.min(Math.max(to, 0), end);
    for (const [i, token] of tokens.entries()) {
      token.tabIndex = i === next ? 0 : -1;
      token.setAttribute("aria-selected", String(i === next));
    }
    tokens[next].focus();
  });
  point(-1);

  function show(forward) {
    now = Math.min(forward, run.nfe);
    for (const [i, token] of tokens.entries()) {
      const step = run.steps[i], there = step >= 0 && step < now;
      token.classList.toggle("given", step === GIVEN);
      token.classList.toggle("never", step === NEVER);
      token.classList.toggle("masked", step >= now);
      token.classList.toggle("fresh", there && step === forward - 1 && forward < run.nfe);
      token.style.background = there ? grounds[tint(step)] : "";
      token.style.color = there ? inks[tint(step)] : "";
      token.setAttribute("aria-label", describe(i));
    }
    count.textContent = `${now} of ${run.nfe} forwards`;
    progress.value = now;
    done.textContent = now >= run.nfe ? "✓ done" : whole > 0 && now >= whole ? `✓ text complete after ${whole}` : "";
    element.classList.toggle("over", now >= run.nfe);
    point(pointed);
  }

  const marks = { 1: ["right", "✓ right"], 0: ["wrong", "✗ wrong"] };
  const [kind, mark] = run.score == null ? ["", ""] : marks[run.score] ?? ["soft", `score ${run.score}`];
  const element = make("article", { class: "panel" },
    make("h3", {}, spec(run.name)),
    make("p", { class: "soft small" }, EXACT[run.exact] ?? run.exact),
    make("p", { class: "count" }, count, done), progress, box, told,
    make("p", { class: "final" }, make("strong", {}, "Final text: "), (run.text ?? run.texts.join("")).trim() || "(empty)",
      mark && make("span", { class: kind }, `  ${mark}`)));
  return { element, show };
}
