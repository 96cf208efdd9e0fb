// The stream, the way from view to view, and when to draw.
import { apply, shown, state } from "./state.js";
import { html } from "./charts.js";
import * as views from "./views.js";

const VIEWS = [["swarm", "Swarm"], ["learning", "Learning"], ["tasks", "Tasks"], ["talk", "Talk"], ["peers", "Peers"], ["machine", "Machine"], ["settings", "Settings"]];
const DRAW_MS = 500;
const nav = document.getElementById("nav"), main = document.getElementById("view"), link = document.getElementById("link");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
let drawn = -1, drawnAt = 0, drawnView = "";

const current = () => (VIEWS.find(([name]) => `#${name}` === location.hash) ?? VIEWS[0])[0];

nav.append(...VIEWS.map(([name, title]) => html("a", { href: `#${name}`, id: `to-${name}` }, title)));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const chosen = VIEWS[Number(event.key) - 1];
  if (chosen) location.hash = chosen[0];
});
addEventListener("hashchange", () => main.focus({ preventScroll: true }));
if ("scrollRestoration" in history) history.scrollRestoration = "manual";

const theme = document.getElementById("theme");
const kept = localStorage.getItem("theme");
if (kept) document.documentElement.dataset.theme = kept;
theme.onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
};

function filters() {
  const box = document.getElementById("filters");
  if (state.runs.length < 2) return box.replaceChildren();
  box.replaceChildren(...state.runs.map((run) => {
    const tick = html("input", { type: "checkbox" });
    tick.checked = !state.hidden.has(run);
    tick.onchange = () => {
      if (tick.checked) state.hidden.delete(run);
      else state.hidden.add(run);
      state.version += 1;
    };
    return html("label", {}, [tick, run]);
  }));
}

function draw(now) {
  const view = current(), open = document.activeElement?.tagName === "SELECT";
  if (view !== drawnView || (state.version !== drawn && now - drawnAt > DRAW_MS && !open)) {
    const scrolled = main.querySelector(".news")?.scrollTop;
    main.replaceChildren(state.nodes.size ? views[view]() : html("p", { class: "soft" }, "waiting for a node ..."));
    if (scrolled && main.querySelector(".news")) main.querySelector(".news").scrollTop = scrolled;
    for (const [name] of VIEWS) {
      const to = document.getElementById(`to-${name}`);
      if (name === view) to.setAttribute("aria-current", "page");
      else to.removeAttribute("aria-current");
    }
    [drawn, drawnAt, drawnView] = [state.version, now, view];
  }
  if (view === "swarm" && !calm) views.fly(now);
  requestAnimationFrame(draw);
}

const source = new EventSource("/events");
source.onmessage = (message) => {
  const told = JSON.parse(message.data), first = told[0]?.kind === "hello";
  apply(told, !first);
  if (first) filters();
  const running = shown().filter((node) => node.running).length;
  link.textContent = `${running} of ${shown().length} running`;
};
source.onerror = () => {
  link.textContent = "connection lost, trying again";
};
requestAnimationFrame(draw);
