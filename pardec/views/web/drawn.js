/** Pictures cell by cell as their forwards committed them, each beside the map of tokens gained. */
function drawn(root, pictures, scale, most) {
  const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map(found => [found.dataset.part, found]));
  const grounds = scale.grounds, last = Math.max(1, ...pictures.map(held => held.nfe));
  let timer = null;
  part.ramp.append(...grounds.map(ground => make("i", { style: `background:${ground}` })));
  part.most.textContent = `${most} token${most === 1 ? "" : "s"}`;
  const tint = count => grounds[most > 1 ? Math.round((count - 1) / (most - 1) * (grounds.length - 1)) : 0];
  const shown = pictures.map(held => easel(held, tint));
  part.pictures.append(...shown.map(one => one.element));
  part.slider.max = part.slider.value = last;

  const at = () => Number(part.slider.value);
  function show() {
    part.at.textContent = `${at()} of ${last}`;
    part.slider.setAttribute("aria-valuetext", `after forward ${at()} of ${last}`);
    for (const one of shown) one.show(at());
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
      at() < last ? tick() : pause();
    }, 1000 / Number(part.speed.value));
  }
  part.play.addEventListener("click", () => {
    if (timer !== null) return pause();
    if (at() === last) { part.slider.value = 0; show(); }
    part.play.textContent = "Pause";
    tick();
  });
  part.slider.addEventListener("input", () => { pause(); show(); });
  show();
}

/** One picture and its map. */
function easel(held, tint) {
  const [rows, columns] = held.grid, source = new Image();
  const left = make("canvas", { role: "img", "aria-label": held.title });
  const right = make("canvas", { role: "img", "aria-label": `tokens gained, by cell: ${held.title}`, width: columns, height: rows });
  const count = make("span", { class: "soft small" }), told = make("p", { class: "told" });
  const rates = held.drafted ? rated(held) : null;
  let now = 0;
  const there = cell => held.steps[cell] >= 0 && held.steps[cell] < now;

  function draw() {
    const map = right.getContext("2d"), picture = left.getContext("2d");
    map.clearRect(0, 0, columns, rows);
    if (source.complete && source.naturalWidth) {
      left.width = source.naturalWidth;
      left.height = source.naturalHeight;
      picture.drawImage(source, 0, 0);
    }
    for (let cell = 0; cell < rows * columns; cell++) {
      const row = Math.floor(cell / columns), column = cell % columns;
      if (there(cell)) {
        map.fillStyle = tint(held.gained[cell]);
        map.fillRect(column, row, 1, 1);
      } else {
        const x = Math.ceil(column * left.width / columns), y = Math.ceil(row * left.height / rows);
        picture.clearRect(x, y, Math.ceil((column + 1) * left.width / columns) - x, Math.ceil((row + 1) * left.height / rows) - y);
      }
    }
  }

  function point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    const cell = row * columns + column, step = held.steps[cell], many = held.gained[cell];
    told.textContent = `row ${row + 1}, column ${column + 1}: ` + (there(cell)
      ? `${held.codes ? `code ${held.codes[cell]}, ` : ""}committed in forward ${step + 1} of ${held.nfe}, which gained ${many} token${many === 1 ? "" : "s"}`
      : "not known yet");
  }
  for (const canvas of [left, right]) canvas.addEventListener("pointermove", point);
  source.addEventListener("load", draw);
  source.src = held.source;
  const element = make("article", {}, make("h3", {}, held.title), make("div", { class: "pair" }, left, right),
    make("p", { class: "soft small" }, count), ...(rates ? [rates.element] : []), told);

  function show(forward) {
    now = Math.min(forward, held.nfe);
    count.textContent = `seed ${held.seed}, ${now} of ${held.nfe} forwards, ${held.steps.filter((_, cell) => there(cell)).length} of ${rows * columns} tokens`;
    rates?.show(now);
    draw();
  }
  return { element, show };
}

/** Of drafted vectors, a bar a forward: as high as the share of them that it accepted. */
function rated(held) {
  const forwards = held.drafted.flatMap((many, at) => many ? [{ at, many, taken: held.accepted[at] }] : []);
  const sum = name => forwards.reduce((all, one) => all + one[name], 0);
  const bars = forwards.map(one => make("i", {
    style: `height:${100 * one.taken / one.many}%`, title: `forward ${one.at + 1}: ${one.taken} of ${one.many} drafts accepted`,
  }));
  const told = `${sum("taken")} of ${sum("many")} drafts accepted, by forward`;
  const element = make("div", { class: "rates" }, make("p", { class: "soft small" }, told),
    make("div", { class: "bars", role: "img", "aria-label": told }, ...bars));
  const show = now => bars.forEach((bar, at) => bar.classList.toggle("later", forwards[at].at >= now));
  return { element, show };
}
