const field = id => document.getElementById(id);
let sides = [], running = null;

/** One sampler's panel. Its frames are the canvas after each forward: {forwards, seconds, tokens}. */
function side(name) {
  const canvas = make("div", { class: "tokens" }), count = make("p", { class: "count" }), end = make("p", { class: "final" });
  const element = make("article", { class: "panel" }, make("h3", {}, spec(name || "the server's default")), count, canvas, end);
  return { name, element, canvas, count, end, frames: [], done: false };
}

/** Shows a side after this many forwards. */
function show(one, forward) {
  const at = one.frames.findLastIndex(frame => frame.forwards <= forward);
  const frame = one.frames[at], before = one.frames[at - 1]?.tokens ?? [];
  one.canvas.replaceChildren(...(frame?.tokens ?? []).map((text, i) => {
    const fresh = text !== null && (before[i] ?? null) === null;
    return make("span", { class: text === null ? "token masked" : fresh ? "token fresh" : "token" }, text ?? "··");
  }));
  const over = one.done && at === one.frames.length - 1;
  one.count.textContent = frame ? `${frame.forwards} forwards, ${frame.seconds.toFixed(2)} s${over ? ", done" : ""}` : "waiting";
  one.element.classList.toggle("over", over);
}

function draw(follow) {
  const last = Math.max(0, ...sides.flatMap(one => one.frames.map(frame => frame.forwards)));
  field("at").max = last;
  if (follow) field("at").value = last;
  field("shown").textContent = `${field("at").value} of ${last}`;
  for (const one of sides) show(one, Number(field("at").value));
}

/** The events of a stream: [name, data]. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const lines = Object.fromEntries(part.split("\n").filter(line => !line.startsWith(":")).map(line => line.split(/: (.*)/s, 2)));
      if (lines.data && lines.data !== "[DONE]") yield [lines.event, JSON.parse(lines.data)];
    }
  }
}

async function decode(one, signal) {
  const chat = field("chat").checked, text = field("asked").value, began = performance.now();
  const body = { stream: true, stream_options: { include_denoise: true, include_usage: true }, max_tokens: Number(field("tokens").value),
    temperature: 0, ...(one.name ? { sampler: one.name } : {}), ...(chat ? { messages: [{ role: "user", content: text }] } : { prompt: text }) };
  const headers = { "Content-Type": "application/json", ...(field("key").value ? { Authorization: `Bearer ${field("key").value}` } : {}) };
  let final = "";
  const fail = message => { one.end.textContent = message; one.end.className = "final wrong"; };
  try {
    const answer = await fetch(chat ? "v1/chat/completions" : "v1/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!answer.ok) return fail((await answer.json()).error.message);
    for await (const [name, chunk] of events(answer.body)) {
      const seconds = (performance.now() - began) / 1000;
      if (chunk.error) return fail(chunk.error.message);
      if (name === "denoise") one.frames.push({ forwards: chunk.denoise.forwards, seconds, tokens: chunk.denoise.tokens });
      for (const choice of chunk.choices) final += choice.text ?? choice.delta?.content ?? "";
      draw(true);
    }
    one.done = true;
    one.end.replaceChildren(make("strong", {}, "Final text: "), final.trim() || "(empty)");
  } catch (error) {
    if (error.name !== "AbortError") fail(`the server cannot be reached: ${error.message}`);
  }
}

field("race").addEventListener("submit", async event => {
  event.preventDefault();
  running?.abort();
  const own = running = new AbortController();
  const both = sides = [side(field("one").value.trim()), side(field("two").value.trim())];
  field("panels").replaceChildren(...both.map(one => one.element));
  draw(true);
  if (field("turns").checked) for (const one of both) await decode(one, own.signal);
  else await Promise.all(both.map(one => decode(one, own.signal)));
  if (running === own) { running = null; draw(true); }
});
field("at").addEventListener("input", () => draw(false));
