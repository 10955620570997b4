/** Tables whose column heads sort: best first, then the other way round; empty cells stay at the end. */
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  for (const [column, head] of heads.entries()) {
    head.querySelector("button")?.addEventListener("click", () => {
      const first = head.dataset.first, now = head.getAttribute("aria-sort");
      const order = now === null ? first : now === "ascending" ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      const value = row => row.cells[column].dataset.value;
      const compare = (a, b) => {
        const [one, other] = [value(a), value(b)];
        if (one === "" || other === "") return (one === "") - (other === "");
        return sign * (head.dataset.text === undefined ? one - other : one.localeCompare(other));
      };
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      body.append(...[...body.rows].sort(compare));
    });
  }
}

/** Groups of which a select shows one. */
for (const select of document.querySelectorAll("select[data-shows]")) {
  const group = document.getElementById(select.dataset.shows);
  select.addEventListener("change", () => {
    for (const child of group.children) child.hidden = child.dataset.name !== select.value;
  });
}

for (const button of document.querySelectorAll("button[data-copies]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

if (data.plot) plot(document.getElementById("frontier"), data.plot.samplers, data.plot.costs, data.plot.qualities);
if (data.prompts.length) replay(document.getElementById("replay"), data.prompts, data.scale);
