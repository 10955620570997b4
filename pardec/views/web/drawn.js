/** Pictures cell by cell as their forwards committed them, each beside the map of tokens gained. */
function drawn(root, pictures, scale, most) {
  const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map(found => [found.dataset.part, found]));
  const grounds = scale.grounds, last = Math.max(1, ...pictures.map(held => held.nfe));
  let timer = null;
  part.ramp.append(...grounds.map(ground => make("i", { style: `background:${ground}` })));
  part.most.textContent = `${most} token${most === 1 ? "" : "s"}`;
  const tint = count => grounds[most > 1 ? Math.round((count - 1) / (most - 1) * (grounds.length - 1)) : 0];
  const shown = pictures.map(held => held.sides ? forming(held, grounds) : easel(held, tint));
  if (pictures.some(held => held.sides)) {
    [part.least, part.most, part.what].forEach((one, at) => { one.textContent = ["unlikely", "likely", "codes of a token map"][at]; });
    part.explained.textContent = "On the left the picture as coarse as the latest token map; on the right, for each code of that map, "
      + "how likely it was. Point at a code to read its numbers.";
  }
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

/** A picture of token maps: as coarse as its latest map, beside how likely each code of that map was. */
function forming(held, grounds) {
  const source = new Image();
  const left = make("canvas", { role: "img", "aria-label": held.title });
  const right = make("canvas", { role: "img", "aria-label": `how likely each code was: ${held.title}` });
  const count = make("span", { class: "soft small" }), told = make("p", { class: "told" });
  const starts = held.sides.map((_, at) => held.sides.slice(0, at).reduce((sum, side) => sum + side * side, 0));
  let now = 0;

  function draw() {
    const picture = left.getContext("2d"), map = right.getContext("2d"), side = held.sides[now - 1] || 1;
    if (source.complete && source.naturalWidth) {
      left.width = source.naturalWidth;
      left.height = source.naturalHeight;
      if (now === held.sides.length) picture.drawImage(source, 0, 0);
      else if (now > 0) {
        const small = make("canvas", { width: side, height: side }), pen = small.getContext("2d");
        pen.imageSmoothingQuality = "high";
        pen.drawImage(source, 0, 0, side, side);
        picture.imageSmoothingEnabled = false;
        picture.drawImage(small, 0, 0, left.width, left.height);
      }
    }
    right.width = right.height = side;
    for (let cell = 0; now > 0 && cell < side * side; cell++) {
      map.fillStyle = grounds[Math.round(held.scores[starts[now - 1] + cell] * (grounds.length - 1))];
      map.fillRect(cell % side, Math.floor(cell / side), 1, 1);
    }
  }

  function point(event) {
    const box = event.currentTarget.getBoundingClientRect(), side = held.sides[now - 1];
    if (!side) return void (told.textContent = "not known yet");
    const index = (at, size) => Math.min(side - 1, Math.max(0, Math.floor(at / size * side)));
    const row = index(event.clientY - box.top, box.height), column = index(event.clientX - box.left, box.width);
    const cell = starts[now - 1] + row * side + column;
    told.textContent = `map ${now} of ${held.sides.length}, row ${row + 1}, column ${column + 1}: `
      + `code ${held.codes[cell]}, probability ${held.scores[cell]}`;
  }
  for (const canvas of [left, right]) canvas.addEventListener("pointermove", point);
  source.addEventListener("load", draw);
  source.src = held.source;
  const element = make("article", {}, make("h3", {}, held.title), make("div", { class: "pair" }, left, right),
    make("p", { class: "soft small" }, count), told);

  function show(forward) {
    now = Math.min(forward, held.sides.length);
    count.textContent = `seed ${held.seed}, ${now} of ${held.sides.length} token maps`;
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
