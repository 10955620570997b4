const data = JSON.parse(document.getElementById("data").textContent);

/** An element with attributes (null leaves one out) and children, texts as text. */
function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A spec that breaks where its parts join. */
function spec(text) {
  return make("code", {}, ...text.split(/(?<=[+@:,])/).flatMap((piece, at) => at ? [make("wbr"), piece] : [piece]));
}

{
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)"), key = "pardec-theme";
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  try { const kept = localStorage.getItem(key); if (kept) root.dataset.theme = kept; } catch { /* storage is closed */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* it holds for this visit */ }
    name();
  });
  system.addEventListener("change", name);
  name();
}
