const HEIGHT = [300, 460], NARROW = 520, PAD = { left: 58, right: 18, top: 18, bottom: 50 };

/** Quality against cost: points with their intervals, the step line of the frontier, labels that do not overlap. */
function plot(root, samplers, costs, qualities) {
  const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map(e => [e.dataset.part, e]));
  const chart = part.chart;
  const draw = (tag, attributes = {}, ...children) =>
    dress(document.createElementNS(chart.namespaceURI, tag), attributes, children);
  const tasks = [...new Set(samplers.flatMap(one => Object.keys(one.tasks)))];
  part.task.append(make("option", { value: "" }, "all tasks"), ...tasks.map(task => make("option", { value: task }, task)));
  part.task.parentElement.hidden = tasks.length < 2;
  const options = (select, axes) => {
    const filled = axes.filter(axis => samplers.some(one => one.all[axis.key] != null));
    select.append(...filled.map(axis => make("option", { value: axis.key }, axis.title)));
    select.parentElement.hidden = filled.length < 2;
    return filled;
  };
  const across = options(part.cost, costs), up = options(part.quality, qualities);
  part.lost.hidden = !samplers.some(one => one.failed);
  let scaleSet = false;

  const axisOf = (select, axes) => axes.find(axis => axis.key === select.value);
  const figures = one => part.task.value ? one.tasks[part.task.value] ?? {} : one.all;

  function offer(select, axes) {
    for (const option of select.options) option.disabled = !samplers.some(one => figures(one)[option.value] != null);
    if (select.selectedOptions[0].disabled) select.value = [...select.options].find(option => !option.disabled).value;
    return axisOf(select, axes);
  }

  function render() {
    const cost = offer(part.cost, across), quality = offer(part.quality, up);
    const points = samplers.map(one => ({ one, x: span(figures(one), cost.key), y: span(figures(one), quality.key) }))
      .filter(point => point.x && point.y);
    if (!scaleSet) part.log.checked = Math.max(...points.map(p => p.x.mid)) > 6 * Math.min(...points.map(p => p.x.mid));
    const best = frontier(points.filter(point => !point.one.failed), cost.better);
    for (const point of points) point.best = best.includes(point);
    chart.replaceChildren();
    layout(chart, draw, points, best, cost, quality, part.log.checked);
    part.tip.hidden = true;
  }

  const tell = point => {
    part.tip.hidden = point === null;
    if (point === null) return;
    part.tip.textContent = point.told;
    const room = chart.parentElement.clientWidth - part.tip.offsetWidth;
    part.tip.style.left = `${Math.max(0, Math.min(point.left - part.tip.offsetWidth / 2, room))}px`;
    const above = point.top - part.tip.offsetHeight - 14;
    part.tip.style.top = `${above < 0 ? point.top + 14 : above}px`;
  };
  const found = event => event.target.closest?.(".point")?.point ?? null;
  for (const name of ["pointerover", "focusin"]) chart.addEventListener(name, event => tell(found(event)));
  chart.addEventListener("pointerleave", () => tell(chart.querySelector(".point:focus-visible")?.point ?? null));
  chart.addEventListener("focusout", () => tell(null));
  chart.addEventListener("keydown", event => event.key === "Escape" && tell(null));
  for (const select of [part.cost, part.quality, part.task]) {
    select.addEventListener("change", () => { scaleSet = false; render(); });
  }
  part.log.addEventListener("change", () => { scaleSet = true; render(); });
  let width = 0;
  new ResizeObserver(() => { if (chart.clientWidth !== width) { width = chart.clientWidth; render(); } }).observe(chart);
}

/** Value and interval of a figure, or null. */
function span(figures, key) {
  const mid = figures[key];
  return mid == null ? null : { mid, low: figures[`${key}_low`] ?? mid, high: figures[`${key}_high`] ?? mid };
}

/** The points that no other point dominates, cheapest first. */
function frontier(points, better) {
  const sign = better === "low" ? 1 : -1;
  const beats = (a, b) => sign * a.x.mid <= sign * b.x.mid && a.y.mid >= b.y.mid && (a.x.mid !== b.x.mid || a.y.mid !== b.y.mid);
  return points.filter(one => !points.some(other => beats(other, one))).sort((a, b) => sign * (a.x.mid - b.x.mid));
}

function layout(chart, draw, points, best, cost, quality, log) {
  const width = chart.clientWidth, height = Math.round(Math.max(HEIGHT[0], Math.min(HEIGHT[1], width * 0.5)));
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("height", height);
  const area = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: height - PAD.bottom };
  const ends = (axis, pad) => {
    const low = Math.min(...points.map(p => p[axis].low)), high = Math.max(...points.map(p => p[axis].high));
    return [low - (high - low || high || 1) * pad, high + (high - low || high || 1) * pad];
  };
  let [left, right] = ends("x", 0.1), [bottom, top] = ends("y", 0.08);
  if (quality.share) [bottom, top] = [Math.max(bottom, -0.02), Math.min(top, 1.02)];
  left = Math.max(left, 0);
  if (log) {
    const low = Math.min(...points.map(p => p.x.low)), high = Math.max(...points.map(p => p.x.high));
    [left, right] = [low / 1.35, high * 1.35];
  }
  const bend = log ? Math.log : value => value;
  const x = value => area.left + (bend(value) - bend(left)) / (bend(right) - bend(left)) * (area.right - area.left);
  const y = value => area.bottom - (value - bottom) / (top - bottom) * (area.bottom - area.top);
  const shown = (axis, value) => axis.share ? `${round(100 * value)}%` : round(value);

  for (const tick of ticks(bottom, top, 6).filter(tick => !quality.share || tick <= 1)) {
    chart.append(draw("line", { class: "grid", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) }),
      draw("text", { x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, shown(quality, tick)));
  }
  const powers = log ? decades(left, right) : [];
  const across = powers.length > 1 ? powers : ticks(left, right, width < NARROW ? 4 : 8);
  for (const tick of across) {
    chart.append(draw("line", { class: "grid", x1: x(tick), x2: x(tick), y1: area.top, y2: area.bottom }),
      draw("text", { x: x(tick), y: area.bottom + 18, "text-anchor": "middle" }, shown(cost, tick)));
  }
  chart.append(
    draw("text", { class: "name", x: (area.left + area.right) / 2, y: height - 8, "text-anchor": "middle" },
      cost.better === "low" ? `← better: ${cost.title}` : `${cost.title}: better →`),
    draw("text", { class: "name", x: 14, y: (area.top + area.bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 14 ${(area.top + area.bottom) / 2})` }, quality.title));

  if (best.length > 1) {
    const steps = best.slice(1).map((point, i) => {
      const corner = x(point.x.mid), level = y(best[i].y.mid);
      return `L${corner} ${level}L${corner} ${y(point.y.mid)}`;
    });
    chart.append(draw("path", { class: "frontier", d: `M${x(best[0].x.mid)} ${y(best[0].y.mid)}${steps.join("")}` }));
  }
  const taken = [];
  for (const point of points) {
    [point.left, point.top] = [x(point.x.mid), y(point.y.mid)];
    const interval = (axis, told) => point[axis].low === point[axis].high ? "" : ` (${shown(told, point[axis].low)} to ${shown(told, point[axis].high)})`;
    point.told = `${point.one.number} ${point.one.name}: ${quality.title.toLowerCase()} ${shown(quality, point.y.mid)}${interval("y", quality)}, `
      + `${cost.title.toLowerCase()} ${shown(cost, point.x.mid)}${interval("x", cost)}; ${point.one.exact ? "exact" : "relaxed"}`
      + (point.best ? ", on the frontier" : "") + (point.one.failed ? `; ${point.one.failed} failed` : "");
    const bars = [[point.left, y(point.y.low), point.left, y(point.y.high)], [x(point.x.low), point.top, x(point.x.high), point.top]];
    for (const [x1, y1, x2, y2] of bars) {
      if (x1 === x2 && y1 === y2) continue;
      chart.append(draw("line", { class: point.best ? "whisker best" : "whisker", x1, y1, x2, y2 }));
      taken.push({ left: Math.min(x1, x2) - 2, right: Math.max(x1, x2) + 2, top: Math.min(y1, y2) - 2, bottom: Math.max(y1, y2) + 2 });
    }
    taken.push({ left: point.left - 8, right: point.left + 8, top: point.top - 8, bottom: point.top + 8 });
  }
  for (const point of points) {
    const mark = point.one.failed
      ? draw("path", { d: `M${point.left - 6} ${point.top - 6}l12 12m0 -12l-12 12` })
      : point.one.exact
      ? draw("path", { d: `M${point.left} ${point.top - 8}l8 8l-8 8l-8 -8z` })
      : draw("circle", { cx: point.left, cy: point.top, r: 6 });
    const group = draw("g", { class: `point${point.best ? " best" : ""}${point.one.failed ? " failed" : ""}`, tabindex: 0, role: "img", "aria-label": point.told },
      draw("circle", { class: "reach", cx: point.left, cy: point.top, r: 15 }), mark);
    group.point = point;
    chart.append(group);
  }
  for (const point of [...points].sort((a, b) => b.best - a.best || a.left - b.left)) label(chart, draw, point, points, area, taken);
}

const AROUND = [[1, 0], [-1, 0], [0.8, -0.8], [-0.8, -0.8], [0.8, 0.8], [-0.8, 0.8], [0, -1], [0, 1]];

/** Labels a point where the label covers nothing: with the sampler's name if it fits, else with its number. */
function label(chart, draw, point, points, area, taken) {
  const number = `${point.one.number}`, name = `${number} ${point.one.name}`, high = 15;
  const near = point.best ? [13, 24, 36, 50, 70] : [13], far = [13, 24, 36, 50, 70, 95, 120];
  const forms = [[name, near, true], [number, far, true], [number, far, false]];
  for (const [words, reaches, clear] of area.right - area.left < NARROW ? forms.slice(1) : forms) {
    const text = draw("text", { class: point.best ? "label best" : "label" }, words);
    chart.append(text);
    const wide = text.getComputedTextLength();
    for (const reach of reaches) {
      for (const [right, down] of AROUND) {
        const middle = point.left + right * reach, left = right > 0 ? middle : right < 0 ? middle - wide : middle - wide / 2;
        const top = point.top + down * reach - high / 2, box = { left: left - 3, right: left + wide + 3, top, bottom: top + high };
        const inside = box.left >= area.left && box.right <= area.right && box.top >= 0 && box.bottom <= area.bottom;
        if (!inside || taken.some(other => overlap(box, other))) continue;
        const end = { left: right > 0 ? left - 2 : right < 0 ? left + wide + 2 : middle, top: right ? top + high / 2 : down > 0 ? top : top + high };
        if (clear && reach > 13 && points.some(other => other !== point && distance(other, point, end) < 7)) continue;
        text.setAttribute("x", left);
        text.setAttribute("y", top + 11.5);
        if (reach > 13) text.before(draw("line", { class: "leader", x1: point.left, y1: point.top, x2: end.left, y2: end.top }));
        taken.push(box);
        return;
      }
    }
    text.remove();
  }
}

/** How far a point lies from the line between two others; points on the same spot count as far. */
function distance(point, from, to) {
  const [across, down] = [to.left - from.left, to.top - from.top], [x, y] = [point.left - from.left, point.top - from.top];
  if (Math.hypot(x, y) < 3) return Infinity;
  const share = Math.min(Math.max((x * across + y * down) / (across ** 2 + down ** 2), 0), 1);
  return Math.hypot(x - share * across, y - share * down);
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

const round = value => Number(value.toPrecision(Math.abs(value) >= 100 ? 4 : 3)).toLocaleString("en", { maximumFractionDigits: 4 });

/** About `count` round numbers between low and high. */
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(times => times * power >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** 1, 2 and 5 of every power of ten between low and high. */
function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const times of [1, 2, 5]) {
      const value = Number((times * 10 ** power).toPrecision(12));
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}
