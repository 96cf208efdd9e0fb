// The views: each takes the state and returns what to show.
import { colour, heldout, label, last, place, quarantined, shown, smooth, state, tokensPerSecond } from "./state.js";
import { chart, html, legend, svg } from "./charts.js";

const panel = (title, ...children) => html("section", { class: "panel" }, [html("h2", {}, title), ...children]);
const cell = (value, isNumber) => html("td", { class: isNumber ? "number" : null }, value === null || value === undefined ? "–" : String(value));

function table(titles, rows) {
  const head = html("tr", {}, titles.map(([title, isNumber]) => html("th", { class: isNumber ? "number" : null, scope: "col" }, title)));
  const body = rows.map((row) => html("tr", {}, row.map((value, i) => cell(value, titles[i][1]))));
  return html("div", { class: "scroll" }, html("table", {}, [html("thead", {}, head), html("tbody", {}, body)]));
}

const rate = (value) => (value === null || value === undefined ? null : value.toFixed(2));

// The swarm as a picture -------------------------------------------------------------------------
export function swarm() {
  state.places = new Map();
  const runs = state.runs.filter((run) => !state.hidden.has(run));
  const pictures = runs.map((run) => panel(runs.length > 1 ? run : "The swarm", picture(run, shown().filter((node) => node.run === run))));
  return html("div", { class: "two" }, [html("div", { class: runs.length > 1 ? "grid" : "" }, pictures), panel("News", news(shown()))]);
}

function picture(run, nodes) {
  const size = 480, middle = size / 2, places = state.places;
  const made = svg("svg", { class: "swarm", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": `${nodes.length} nodes and their peers` });
  const here = new Set(nodes.map((node) => node.peer));
  const others = [...new Set(nodes.flatMap((node) => [...node.peers.keys()]))].filter((peer) => !here.has(peer)).slice(0, 24);
  nodes.forEach((node, i) => places.set(place(run, node.peer), around(i, nodes.length, middle, nodes.length > 1 ? 150 : 0)));
  others.forEach((peer, i) => places.set(place(run, peer), around(i + 0.5, others.length, middle, 226)));
  for (const node of nodes) {
    for (const peer of node.peers.keys()) {
      const [from, to] = [places.get(place(run, peer)), places.get(place(run, node.peer))];
      if (from && to) made.append(svg("line", { class: "link", x1: from[0], y1: from[1], x2: to[0], y2: to[1] }));
    }
  }
  for (const peer of others) {
    const [cx, cy] = places.get(place(run, peer)), banned = nodes.some((node) => quarantined(node, peer));
    made.append(svg("circle", { cx, cy, r: 8, fill: banned ? "var(--bad)" : "var(--soft)" }, [svg("title", {}, [peer + (banned ? ", in quarantine" : ", elsewhere")])]));
  }
  const fastest = Math.max(0, ...nodes.map((node) => last(node)?.round ?? 0));
  for (const node of nodes) made.append(...drawn(node, places.get(place(run, node.peer)), fastest));
  made.append(svg("g", { class: "air", "data-run": run }));
  return made;
}

function around(i, count, middle, radius) {
  const angle = (2 * Math.PI * i) / Math.max(1, count) - Math.PI / 2;
  return [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)];
}

function drawn(node, [x, y], fastest) {
  const round = last(node), rates = heldout(node), now = rates.at(-1)?.[1], lag = fastest - (round?.round ?? 0);
  const cx = x, cy = y, r = 34, turn = 2 * Math.PI * r;
  const parts = [svg("circle", { cx, cy, r, fill: "var(--panel)", stroke: "var(--line)", "stroke-width": 6 })];
  if (now !== undefined) {
    parts.push(svg("circle", { cx, cy, r, fill: "none", stroke: colour(node), "stroke-width": 6, "stroke-dasharray": `${turn * now} ${turn}`, transform: `rotate(-90 ${cx} ${cy})`, opacity: node.running ? 1 : 0.45 }));
  }
  const [value, what] = now !== undefined ? [now.toFixed(2), "held-out"] : [round?.reward?.toFixed(2) ?? "–", "reward"];
  parts.push(svg("text", { class: "name", x: cx, y: cy + 1 }, [value]), svg("text", { class: "sub tiny", x: cx, y: cy + 14 }, [what]));
  parts.push(svg("text", { class: "name", x: cx, y: cy + r + 20 }, [node.name]));
  const says = `round ${round?.round ?? 0}${lag ? `, ${lag} behind` : ""}${node.running ? "" : ", not running"}`;
  parts.push(svg("text", { class: "sub", x: cx, y: cy + r + 34 }, [says]));
  return parts;
}

// Messages as they fly; called for every frame while this view is open.
export function fly(now) {
  state.flights = state.flights.filter((flight) => now - flight.at < 1400);
  for (const air of document.querySelectorAll("g.air")) {
    const here = state.flights.filter((flight) => flight.run === air.dataset.run);
    air.replaceChildren(...here.map((flight) => flying(flight, now)).filter(Boolean));
  }
}

function flying(flight, now) {
  const from = state.places?.get(flight.from), to = state.places?.get(flight.to);
  if (!from || !to) return null;
  const part = Math.min(1, (now - flight.at) / 1200);
  const fill = flight.event === "refused" ? "var(--bad)" : flight.event === "used" ? "var(--good)" : "var(--soft)";
  return svg("circle", { cx: from[0] + (to[0] - from[0]) * part, cy: from[1] + (to[1] - from[1]) * part, r: 6, fill });
}

function news(nodes) {
  const all = nodes.flatMap((node) => node.events.map((event) => [event.at_s ?? 0, node, event]));
  all.sort((a, b) => b[0] - a[0]);
  const lines = all.slice(0, 60).map(([at, node, event]) => html("div", {}, [
    html("span", { class: "soft" }, `${at ? new Date(at * 1000).toLocaleTimeString() : ""} ${label(node)} `), said(event)]));
  return html("div", { class: "news", role: "log", "aria-label": "news", tabindex: "0" }, lines.length ? lines : "nothing yet");
}

function said(event) {
  if (event.event === "used") return `used ${event.peer}'s ${event.family ?? "answers"}${factors(event.factors)}`;
  if (event.event === "refused") return `refused ${event.peer}: ${event.reason}${event.detail ? ` (${event.detail})` : ""}`;
  if (event.event === "unused") return `let go of ${event.count ?? 1} of ${event.peer}'s: ${event.reason}`;
  const rest = Object.entries(event).filter(([key]) => !["kind", "node", "event", "at_s"].includes(key));
  return `${event.event} ${rest.map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")}`;
}

const factors = (found) => {
  const told = Object.entries(found ?? {}).map(([name, value]) => `${name} ${value.toFixed(2)}`);
  return told.length ? ` (${told.join(", ")})` : "";
};

// Learning ---------------------------------------------------------------------------------------
export function learning() {
  const nodes = shown();
  const curves = nodes.map((node) => ({ name: label(node), colour: colour(node), points: heldout(node) }));
  const twins = nodes.filter((node) => node.twin.length).map((node) => ({ name: label(node), colour: colour(node), points: node.twin.map((point) => point.slice(0, 2)), dashed: true }));
  const rewards = nodes.map((node) => ({ name: label(node), colour: colour(node), points: smooth(points(node, (round) => round.reward)) }));
  return html("div", {}, [
    panel("Own answers to held-out questions, by round", chart([...curves, ...twins], { title: "held-out", most: 1 }), legend([...curves, ...twins]),
      html("p", { class: "soft small" }, `Bands are 95 % intervals. ${twins.length ? "Dashed: the same node by itself (waggle replay --alone)." : "waggle replay RUN --alone adds what each node would have learned by itself."}`)),
    panel("Reward of own answers in training, mean of five rounds", chart(rewards, { title: "reward", most: 1 }), legend(rewards)),
  ]);
}

function points(node, of) {
  return node.rounds.map((round) => [round.round, of(round)]).filter(([, value]) => value !== null && value !== undefined);
}

export function tasks() {
  const nodes = shown(), names = [...new Set(nodes.flatMap((node) => node.rounds.flatMap((round) => Object.keys(round.families))))].sort();
  const all = nodes.map((node) => ({ name: label(node), colour: colour(node), points: [] }));
  const each = names.map((name) => panel(name, chart(nodes.map((node) => ({
    name: label(node), colour: colour(node),
    points: smooth(node.rounds.filter((round) => round.families[name]?.[1]).map((round) => [round.round, round.families[name][0] / round.families[name][1]])),
  })), { width: 380, height: 200, title: name, most: 1 })));
  return html("div", {}, [html("p", { class: "soft" }, "Reward of own answers by task, mean of five rounds that asked it."), legend(all), html("div", { class: "grid" }, each.length ? each : panel("Tasks", "nothing yet"))]);
}

// Conversation -----------------------------------------------------------------------------------
export const talkFilter = { node: "", foreign: false, right: false };

export function talk() {
  const nodes = shown(), chosen = nodes.filter((node) => !talkFilter.node || node.id === talkFilter.node);
  let groups = chosen.flatMap((node) => node.groups.map((group) => [node, group]));
  if (talkFilter.foreign) groups = groups.filter(([node, group]) => group.author !== node.peer);
  if (talkFilter.right) groups = groups.filter(([, group]) => group.answers.some(([, reward]) => reward === 1));
  groups = groups.sort((a, b) => b[1].round - a[1].round).slice(0, 60);
  const select = html("select", { "aria-label": "node" }, [html("option", { value: "" }, "all nodes"), ...nodes.map((node) => html("option", { value: node.id }, label(node)))]);
  select.value = talkFilter.node;
  select.onchange = () => change("node", select.value);
  const tools = html("p", { class: "small" }, [select, " ", tick("only peers' answers", "foreign"), " ", tick("only with a right one", "right")]);
  return panel("Questions and answers, the newest first", tools, ...(groups.length ? groups.map(([node, group]) => conversation(node, group)) : [html("p", { class: "soft" }, "nothing yet")]));
}

function change(name, value) {
  talkFilter[name] = value;
  state.version += 1;
}

function tick(text, name) {
  const box = html("input", { type: "checkbox" });
  box.checked = talkFilter[name];
  box.onchange = () => change(name, box.checked);
  return html("label", {}, [box, ` ${text}`]);
}

function conversation(node, group) {
  const own = group.author === node.peer;
  const who = own ? `${label(node)} answers, round ${group.round}` : `${group.author} answered, ${label(node)} read it in round ${group.round}`;
  const answers = group.answers.map(([text, reward]) => html("span", { class: `answer ${reward === 1 ? "right" : reward === null ? "" : "wrong"}`, title: reward === null ? "could not be graded" : `reward ${reward}` }, `${reward === 1 ? "✓ " : ""}${text || "(nothing)"}`));
  return html("article", { class: "group" }, [html("div", { class: "who" }, `${who} · ${group.env} · ${group.fate || "not trained on"} · truth ${group.truth}`), html("div", { class: "question" }, group.question), html("div", { class: "answers" }, answers)]);
}

// Peers, machine, settings -----------------------------------------------------------------------
export function peers() {
  return html("div", {}, shown().map((node) => {
    const rows = [...node.peers].sort((a, b) => (b[1].used ?? 0) - (a[1].used ?? 0)).map(([peer, counts]) => {
      const { used = 0, ...rest } = counts;
      const means = meanFactors(node, peer);
      return [peer + (quarantined(node, peer) ? " (in quarantine)" : ""), used, Object.entries(rest).map(([reason, count]) => `${reason} ${count}`).join(", ") || "–", means || "–"];
    });
    return panel(`${label(node)}: whose experience was used, and why not`, rows.length ? table([["peer"], ["used", true], ["not used, by reason"], ["factors of what was used last"]], rows) : html("p", { class: "soft" }, "it has not met any experience of peers"));
  }));
}

function meanFactors(node, peer) {
  const found = node.events.filter((event) => event.event === "used" && event.peer === peer && event.factors).slice(-20);
  const names = [...new Set(found.flatMap((event) => Object.keys(event.factors)))];
  return names.map((name) => `${name} ${(found.reduce((sum, event) => sum + (event.factors[name] ?? 0), 0) / found.length).toFixed(2)}`).join(", ");
}

export function machine() {
  const mb = (bytes) => (bytes === undefined ? null : (bytes / 1e6).toFixed(2));
  const rows = shown().map((node) => {
    const round = last(node), used = node.traffic, speed = tokensPerSecond(node);
    return [label(node), node.running ? "running" : "not running", round?.round ?? 0, used ? used.seconds.toFixed(1) : null, speed === null ? null : speed.toFixed(0), round ? Math.round(round.generated) : null, round ? Math.round(round.trained) : null,
      mb(used?.sent_bytes), mb(used?.received_bytes), used?.memory_mb ? Math.round(used.memory_mb) : null, round?.peers ?? null, round?.pool ?? null];
  });
  const columns = [["node"], ["state"], ["round", true], ["seconds a round", true], ["tokens a second", true], ["tokens drawn", true], ["tokens trained", true], ["MB sent", true], ["MB received", true], ["MB memory", true], ["peers", true], ["pool", true]];
  return panel("Machine and network", table(columns, rows));
}

export function settings() {
  const nodes = shown(), rows = [];
  for (const [section, values] of Object.entries(nodes[0]?.config ?? {})) {
    for (const name of Object.keys(values)) {
      const each = nodes.map((node) => JSON.stringify(node.config[section][name]));
      rows.push([`${section}.${name}`, ...(new Set(each).size === 1 ? [each[0]] : [nodes.map((node, i) => `${label(node)}: ${each[i]}`).join("; ")])]);
    }
  }
  return html("div", {}, [panel("Nodes", table([["node"], ["peer"], ["before the first round"], ["folder"]], nodes.map((node) => [label(node), node.peer, node.before ? `${rate(node.before[0])} [${rate(node.before[1])}, ${rate(node.before[2])}]` : null, node.folder]))), panel("Settings", table([["setting"], ["value"]], rows))]);
}
