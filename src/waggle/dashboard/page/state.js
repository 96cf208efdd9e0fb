// What the page knows, bounded: messages of the stream go in, views read it.
const ROUNDS = 600, EVENTS = 200, GROUPS = 60, FLIGHTS = 60;
const COLOURS = ["#d18b00", "#2f7fb8", "#3f9d63", "#b3478c", "#7a6bd0", "#c65b3a", "#2aa198", "#8a7a2a", "#5c8a2e", "#9a5aa8"];

export const state = { runs: [], nodes: new Map(), hidden: new Set(), flights: [], version: 0 };

export function colour(node) {
  return COLOURS[[...state.nodes.keys()].indexOf(node.id) % COLOURS.length];
}

export function shown() {
  return [...state.nodes.values()].filter((node) => !state.hidden.has(node.run));
}

// Where a peer is drawn: runs of one seed have peers of the same names.
export const place = (run, peer) => `${run} ${peer}`;

export function label(node) {
  return state.runs.length > 1 ? `${node.run}/${node.name}` : node.name;
}

function fresh(head) {
  return { ...head, id: head.node, rounds: [], events: [], groups: [], peers: new Map(), twin: [], traffic: null, running: false };
}

function push(list, item, most) {
  list.push(item);
  if (list.length > most) list.splice(0, list.length - most);
}

export function apply(messages, live) {
  for (const one of messages) take(one, live);
  state.version += 1;
}

function take(one, live) {
  if (one.kind === "hello") {
    state.runs = one.runs;
    state.nodes = new Map();
    return;
  }
  if (one.kind === "node") {
    state.nodes.set(one.node, fresh(one));
    return;
  }
  const node = state.nodes.get(one.node);
  if (!node) return;
  if (one.kind === "round") {
    const last = node.rounds.at(-1);
    if (last && one.round <= last.round) node.rounds = node.rounds.filter((round) => round.round < one.round);
    push(node.rounds, one, ROUNDS);
  } else if (one.kind === "event") {
    push(node.events, one, EVENTS);
    if (live && one.peer) push(state.flights, { run: node.run, from: place(node.run, one.peer), to: place(node.run, node.peer), event: one.event, at: performance.now() }, FLIGHTS);
  } else if (one.kind === "group") push(node.groups, one, GROUPS);
  else if (one.kind === "peer") node.peers.set(one.peer, one.counts);
  else if (one.kind === "twin") node.twin = one.heldout;
  else if (one.kind === "traffic") node.traffic = one;
  else if (one.kind === "state") node.running = one.running;
}

export function last(node) {
  return node.rounds.at(-1);
}

export function heldout(node) {
  return node.rounds.filter((round) => round.heldout).map((round) => [round.round, ...round.heldout]);
}

export function tokensPerSecond(node) {
  const [before, now] = node.rounds.slice(-2);
  if (!now || !before || !node.traffic || !node.traffic.seconds) return null;
  return (now.generated - before.generated) / node.traffic.seconds;
}

export function quarantined(node, peer) {
  let until = -1;
  for (const event of node.events) {
    if (event.peer !== peer) continue;
    if (event.event === "quarantined") until = event.until_round;
    if (event.event === "released") until = -1;
  }
  return until > (last(node)?.round ?? 0);
}

export function smooth(points, width = 5) {
  return points.map(([x], i) => {
    const part = points.slice(Math.max(0, i - width + 1), i + 1);
    return [x, part.reduce((sum, [, y]) => sum + y, 0) / part.length];
  });
}
