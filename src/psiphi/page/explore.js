// Everything that the page does. All text of strangers goes through textContent: no markup is ever read from the data.
function explore(root, data) {
  "use strict";
  const BLUE = "#0072b2", ORANGE = "#e69f00", INK = "#1b1b1b", GREY = "#8c8c8c";
  const state = { a: 0, b: data.policies.length > 1 ? 1 : 0, x: 0, y: 1, episode: 0, step: 0, weights: data.sliders.map(s => s.start),
                  board: 0, at: 0, trail: [], collected: null, timer: null, walker: null };

  // --- Small things -----------------------------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function make(name, attributes, children, space) {
    const node = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (key === "value") node.value = value;
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : String(value));
    }
    for (const child of [children].flat(Infinity)) if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
    return node;
  }
  const h = (name, attributes, ...children) => make(name, attributes, children);
  const s = (name, attributes, ...children) => make(name, attributes, children, SVG);
  const signed = x => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
  const percent = x => Math.round(100 * x) + " %";
  const put = (node, ...children) => node.replaceChildren(...children.flat(Infinity).filter(c => c !== null));
  const argmax = list => list.reduce((best, x, i) => (x > list[best] ? i : best), 0);
  const share = logits => { const top = Math.max(...logits), e = logits.map(x => Math.exp(x - top)), sum = e.reduce((p, q) => p + q); return e.map(x => x / sum); };

  // Arrays come as whole numbers of one or two bytes, with the smallest and the step of each entry of the last axis.
  function unpacked(packed) {
    if (!packed) return null;
    const text = atob(packed.data), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const raw = packed.bytes === 2 ? new Uint16Array(bytes.buffer) : bytes, width = packed.low.length;
    const stride = packed.shape.map((_, i) => packed.shape.slice(i + 1).reduce((p, q) => p * q, 1));
    return { shape: packed.shape, at: (...index) => {
      const place = index.reduce((sum, i, axis) => sum + i * stride[axis], 0);
      return packed.low[place % width] + raw[place] * packed.step[place % width];
    } };
  }

  // --- Generalised policy improvement: of all known policies, what the best of them promises on these preferences -----------
  function promised(psi, first, weights) {
    const [policies, members, actions, terms] = psi.shape.slice(psi.shape.length - 4);
    const values = [], votes = [];
    for (let p = 0; p < policies; p++) {
      const least = Array(actions).fill(Infinity);
      for (let e = 0; e < members; e++) {
        votes[e] = votes[e] || Array(actions).fill(-Infinity);
        for (let a = 0; a < actions; a++) {
          let q = 0;
          for (let i = 0; i < terms; i++) if (weights[i]) q += weights[i] * psi.at(...first, p, e, a, i);
          least[a] = Math.min(least[a], q);
          votes[e][a] = Math.max(votes[e][a], q);
        }
      }
      values.push(least);
    }
    const best = values[0].map((_, a) => Math.max(...values.map(row => row[a])));
    const action = argmax(best), follows = argmax(values.map(row => row[action]));
    const scale = Math.max(...weights.map(Math.abs)) || 1;
    const sure = share(best.map(x => x / (data.temperature * scale)));
    return { action, follows, best, sure, agree: votes.filter(row => argmax(row) === action).length, members };
  }

  // --- Parts of the page ---------------------------------------------------------------------------------------------------
  const policies = data.policies, log = data.log && { ...data.log, obs: unpacked(data.log.obs), rewards: unpacked(data.log.rewards),
    chance: unpacked(data.log.chance), psi: unpacked(data.log.psi), action: unpacked(data.log.action) };
  const boards = data.boards && { ...data.boards, psi: unpacked(data.boards.psi), next: unpacked(data.boards.next) };
  const agents = policies.map((p, i) => i).filter(i => !policies[i].ego);
  const quantities = data.columns, redraws = [];
  const redraw = () => redraws.forEach(draw => draw());

  function chooser(words, options, get, set) {
    const select = h("select", { on: { change: () => { set(Number(select.value)); redraw(); } } }, options.map(([value, name]) => h("option", { value }, name)));
    redraws.push(() => { select.value = String(get()); });
    return h("label", {}, words, select);
  }
  const whom = agents.map(k => [k, policies[k].name + (policies[k].doubtful ? " (doubtful)" : "")]);

  function header() {
    const doubt = h("div");
    redraws.push(() => put(doubt, [...new Set([state.a, state.b])].filter(k => policies[k] && policies[k].findings.length).map(k =>
      h("details", { class: "doubt" }, h("summary", {}, h("b", {}, policies[k].name, policies[k].doubtful ? ": doubtful" : ": worth knowing")), policies[k].findings.map(text => h("p", {}, text))))));
    return h("header", {}, h("h1", {}, data.title), h("p", {}, data.headline), data.notes.map(note => h("p", { class: "quiet" }, note)),
      agents.length ? h("p", {}, chooser("Agent", whom, () => state.a, k => { state.a = k; firstEpisode(); }), chooser("beside", whom, () => state.b, k => { state.b = k; })) : null, doubt);
  }
  function firstEpisode() {
    if (!log) return;
    const mine = log.episodes.findIndex(e => e.agent === state.a);
    if (mine >= 0) { state.episode = mine; state.step = 0; }
  }

  function agentMap() {
    const width = 420, height = 320, holder = h("div", { class: "panel" }), detail = h("div", { class: "panel" });
    const xs = agents.map(k => data.map[k][0]), ys = agents.map(k => data.map[k][1]);
    const span = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys), 1e-9);
    const spot = (value, all, room) => 40 + (room - Math.max(...all) / span * room + Math.min(...all) / span * room) / 2 + room * (value - Math.min(...all)) / span;
    const place = k => [spot(data.map[k][0], xs, width - 160), spot(data.map[k][1], ys, height - 80)];
    redraws.push(() => {
      const dots = agents.map(k => {
        const [x, y] = place(k), choose = () => { state.a = k; firstEpisode(); redraw(); };
        const colour = policies[k].doubtful ? GREY : k === state.a ? BLUE : k === state.b ? ORANGE : INK;
        return s("g", { class: "dot", tabindex: 0, role: "button", "aria-label": "Choose " + policies[k].name, "data-agent": k,
                        on: { click: choose, keydown: event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); holder.querySelector(`[data-agent="${k}"]`).focus(); } } } },
          s("circle", { cx: x, cy: y, r: k === state.a ? 9 : 6, fill: policies[k].doubtful ? "#fff" : colour, stroke: colour, "stroke-width": 2, "stroke-dasharray": policies[k].doubtful ? "3 2" : null }),
          agents.length <= 40 || k === state.a || k === state.b ? s("text", { x: x + 12, y: y + 4 }, policies[k].name.length > 20 ? policies[k].name.slice(0, 19) + "…" : policies[k].name) : null);
      });
      put(holder, s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Map of agents" }, dots),
        h("p", { class: "quiet" }, "Agents whose inferred rewards are alike lie close together. Grey and dashed: the verdict warns of this agent."));
      const others = agents.filter(k => k !== state.a).sort((p, q) => data.likeness[state.a][q] - data.likeness[state.a][p]).slice(0, 12);
      const wants = policies[state.a] ? policies[state.a].wants : [], second = policies[state.b] ? policies[state.b].wants : [];
      put(detail,
        wants.length ? h("table", { class: policies[state.a].doubtful ? "greyed" : null }, h("tr", {}, h("th", {}, "wants, per unit"), h("th", {}, policies[state.a].name), h("th", {}, policies[state.b].name)),
          wants.map(([name, value], i) => h("tr", {}, h("th", {}, name), h("td", {}, signed(value)), h("td", {}, second[i] ? signed(second[i][1]) : "")))) : null,
        others.length ? h("h3", {}, "Alike (correlation of the rewards)") : null,
        h("table", {}, others.map(k => h("tr", {}, h("th", {}, policies[k].name), h("td", {}, signed(data.likeness[state.a][k])), h("td", {}, data.range ? `${signed(data.range[0][state.a][k])} to ${signed(data.range[1][state.a][k])}` : "")))));
    });
    return h("section", {}, h("h2", {}, "Who is like whom"), h("div", { class: "row" }, holder, detail));
  }

  // Blue is paid, orange costs: told apart with any eyes, and by sign in the tooltip.
  function tint(x) {
    const part = Math.min(Math.abs(x), 1), to = x >= 0 ? [0, 114, 178] : [213, 94, 0];
    return `rgb(${to.map(c => Math.round(245 + (c - 245) * part)).join(",")})`;
  }
  function cuts(column) {
    const values = [];
    for (let i = 0; i < log.steps; i++) values.push(log.obs.at(i, column));
    values.sort((p, q) => p - q);
    const distinct = [...new Set(values)];
    if (distinct.length <= 12) return distinct.slice(1).map((v, i) => (v + distinct[i]) / 2);
    return [...new Set([1, 2, 3, 4, 5, 6, 7, 8, 9].map(i => values[Math.floor(values.length * i / 10)]))];
  }
  function rewardMap() {
    const pictures = h("div", { class: "row" }), all = quantities.map((name, i) => [i, name]);
    const bin = (edges, v) => { let i = 0; while (i < edges.length && v >= edges[i]) i++; return i; };
    const panel = k => {
      const cx = cuts(state.x), cy = cuts(state.y), sum = {}, count = {};
      for (let i = 0; i < log.steps; i++) {
        const key = bin(cx, log.obs.at(i, state.x)) + "," + bin(cy, log.obs.at(i, state.y)), r = log.rewards.at(i, k);
        sum[key] = (sum[key] || 0) + r; count[key] = (count[key] || 0) + 1;
      }
      const top = Math.max(...Object.keys(sum).map(key => Math.abs(sum[key] / count[key])), 1e-9);
      const w = 360 / (cx.length + 1), t = 260 / (cy.length + 1);
      const cells = Object.keys(sum).map(key => {
        const [i, j] = key.split(",").map(Number), mean = sum[key] / count[key];
        return s("rect", { x: 50 + i * w, y: 270 - (j + 1) * t, width: w, height: t, fill: tint(mean / top), stroke: "#fff" }, s("title", {}, `${signed(mean)} on average over ${count[key]} steps`));
      });
      const marks = (edges, where) => edges.filter((_, i) => i % Math.ceil(edges.length / 5) === 0).map(where);
      return h("div", { class: "panel" + (policies[k].doubtful ? " greyed" : "") }, h("h3", {}, policies[k].name + (policies[k].doubtful ? ": doubtful" : "")),
        s("svg", { viewBox: "0 0 430 310", width: 430, height: 310, role: "img", "aria-label": `Reward of ${policies[k].name} over ${quantities[state.x]} and ${quantities[state.y]}` }, cells,
          marks(cx, v => s("text", { x: 50 + (cx.indexOf(v) + 1) * w, y: 284, "text-anchor": "middle" }, String(Number(v.toPrecision(3))))),
          marks(cy, v => s("text", { x: 46, y: 274 - (cy.indexOf(v) + 1) * t, "text-anchor": "end" }, String(Number(v.toPrecision(3))))),
          s("text", { x: 230, y: 304, "text-anchor": "middle" }, quantities[state.x])),
        h("p", { class: "quiet" }, `Up: ${quantities[state.y]}. Blue: paid, up to ${top.toFixed(2)}; orange: costs; white: about nothing, or no step.`));
    };
    redraws.push(() => put(pictures, [...new Set([state.a, state.b])].map(panel)));
    return h("section", {}, h("h2", {}, "Reward over any two quantities, of where a step leads"),
      chooser("Across", all, () => state.x, i => { state.x = i; }), chooser("up", all, () => state.y, i => { state.y = i; }), pictures);
  }

  function bars(rows, second) {
    return rows.map(([name, part, mark]) => h("div", { class: "bar" + (second ? " second" : "") }, h("span", {}, mark ? h("b", {}, name, " (done)") : name), h("i", { style: `width:${100 * part}%` }), h("span", {}, percent(part))));
  }
  function replay() {
    const chart = h("div"), sorted = h("p", { class: "quiet", "data-sorted": "" }), side = h("div", { class: "panel" }), predictions = h("div", { class: "panel" }), said = h("p", { class: "said", "aria-live": "polite" });
    const range = h("input", { type: "range", min: 0, value: 0, "aria-label": "Step of the episode", style: "width:100%", on: { input: () => { state.step = Number(range.value); redraw(); } } });
    const play = h("button", { on: { click: () => {
      if (state.timer) { clearInterval(state.timer); state.timer = null; play.textContent = "Play"; return; }
      play.textContent = "Pause";
      state.timer = setInterval(() => { const e = log.episodes[state.episode]; state.step = (state.step + 1) % (e.end - e.start); redraw(); }, 600);
    } } }, "Play");
    const episodes = log.episodes.map((e, i) => [i, `${policies[e.agent].name}: ${e.name}${e.cut ? " (its beginning)" : ""}`]);
    redraws.push(() => {
      const e = log.episodes[state.episode], length = e.end - e.start, i = e.start + Math.min(state.step, length - 1);
      state.step = i - e.start;
      range.max = length - 1; range.value = state.step;
      if (log.kinds) sorted.textContent = "Sorted by what is done: " + log.kinds[state.episode].map((part, k) => `kind ${k + 1} ${percent(part)}`).join(", ") + ".";
      const both = [...new Set([state.a, state.b])], lines = both.map(k => Array.from({ length }, (_, t) => log.rewards.at(e.start + t, k)));
      const most = Math.max(...lines.flat().map(Math.abs), 1e-9), x = t => 40 + 680 * (length > 1 ? t / (length - 1) : 0.5), y = r => 75 - 65 * r / most;
      put(chart, s("svg", { viewBox: "0 0 740 160", width: 740, height: 160, role: "img", "aria-label": "Inferred reward along the episode" },
        s("line", { x1: 40, x2: 720, y1: 75, y2: 75, stroke: "#bbb" }), s("line", { x1: x(state.step), x2: x(state.step), y1: 5, y2: 145, stroke: INK, "stroke-dasharray": "4 3" }),
        s("text", { x: 34, y: 16, "text-anchor": "end" }, most.toFixed(1)), s("text", { x: 34, y: 145, "text-anchor": "end" }, "−" + most.toFixed(1)),
        lines.map((line, j) => s("polyline", { fill: "none", stroke: policies[both[j]].doubtful ? GREY : [BLUE, ORANGE][j], "stroke-width": j ? 2 : 3, "stroke-dasharray": j ? "6 4" : null, points: line.map((r, t) => `${x(t)},${y(r)}`).join(" ") }))),
        h("p", { class: "quiet" }, both.map((k, j) => `${j ? "dashed" : "solid"}: ${policies[k].name}`).join("; ")));
      const done = log.action.at(i);
      put(side, h("h3", {}, "Where the step leads"), h("div", { class: "scroll" }, h("table", {}, quantities.slice(0, 40).map((name, c) => h("tr", {}, h("th", {}, name), h("td", {}, name === "action" && c === quantities.length - 2 ? data.actions[done] : Number(log.obs.at(i, c).toPrecision(4))))))));
      put(predictions, both.map((k, j) => h("div", { class: policies[k].doubtful ? "greyed" : null }, h("h3", {}, `${policies[k].name} would`), bars(data.actions.map((name, a) => [name, log.chance.at(i, k, a), a === done]), j))));
      const own = argmax(data.actions.map((_, a) => log.chance.at(i, state.a, a)));
      said.textContent = `Step ${state.step + 1} of ${length}: ${policies[e.agent].name} did ${data.actions[done]}; ${policies[state.a].name} would most likely do ${data.actions[own]}; reward of ${policies[state.a].name} ${signed(log.rewards.at(i, state.a))}.`;
    });
    return h("section", {}, h("h2", {}, "Replay an episode"), chooser("Episode", episodes, () => state.episode, i => { state.episode = i; state.step = 0; }), play, log.kinds ? sorted : null, range, said, chart, h("div", { class: "row" }, predictions, side));
  }

  // --- What if: sliders over preferences ----------------------------------------------------------------------------------
  function sliders() {
    const grid = h("div", { class: "sliders" });
    let group = null;
    data.sliders.forEach((slider, i) => {
      if (slider.group !== group) grid.append(h("h3", {}, group = slider.group));
      const id = `psiphi-slider-${i}`, out = h("output", { for: id });
      const input = h("input", { id, type: "range", min: -2, max: 2, step: 0.1, value: slider.start, disabled: slider.off !== "", "data-slider": i, on: { input: () => { state.weights[i] = Number(input.value); redraw(); } } });
      redraws.push(() => { input.value = state.weights[i]; out.textContent = slider.off ? "" : signed(state.weights[i]); });
      grid.append(h("label", { for: id, class: slider.off ? "off" : null }, slider.name), input, out);
      if (slider.off) grid.append(h("p", { class: "quiet" }, slider.off));
    });
    const zero = h("button", { on: { click: () => { state.weights = state.weights.map(() => 0); redraw(); } } }, "All to zero");
    return h("div", { class: "panel" }, grid, h("p", {}, zero));
  }
  function told(found) {
    const agreed = found.members > 1 ? ` Each alone, ${found.agree} of ${found.members} networks would do the same.` : "";
    return `${data.actions[found.action]}, as ${policies[found.follows].name} would; sure to ${percent(found.sure[found.action])}.${agreed}`;
  }
  const wanting = () => state.weights.some(x => x !== 0);

  function onLog() {
    const said = h("p", { class: "said", "aria-live": "polite", "data-told": "log" }), strip = h("div"), sum = h("div", { class: "panel" });
    const colours = [BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000"];
    redraws.push(() => {
      if (!wanting()) { said.textContent = "Nothing is wanted: move a slider."; put(strip); put(sum); return; }
      const e = log.episodes[state.episode], i = e.start + state.step, length = e.end - e.start;
      said.textContent = "In the step that is replayed above: " + told(promised(log.psi, [i], state.weights));
      const w = Math.min(24, 720 / length), does = [];
      for (let t = 0; t < length; t++) does.push(promised(log.psi, [e.start + t], state.weights));
      const cell = (t, row, a) => s("g", {}, s("rect", { x: 60 + t * w, y: 4 + 26 * row, width: w, height: 22, fill: colours[a % 8], stroke: t === state.step ? INK : "#fff", "stroke-width": t === state.step ? 3 : 1 }, s("title", {}, data.actions[a])),
        w >= 14 ? s("text", { x: 60 + (t + 0.5) * w, y: 20 + 26 * row, "text-anchor": "middle", style: "fill:#fff;paint-order:stroke;stroke:#000;stroke-width:2px" }, a) : null);
      put(strip, s("svg", { viewBox: "0 0 790 60", width: 790, height: 60, role: "img", "aria-label": "Actions along the episode, logged and under these preferences" },
        s("text", { x: 0, y: 20 }, "logged"), s("text", { x: 0, y: 46 }, "would"), does.map((found, t) => [cell(t, 0, log.action.at(e.start + t)), cell(t, 1, found.action)])),
        h("p", { class: "quiet" }, data.actions.slice(0, 12).map((name, a) => `${a}: ${name}`).join("; ")));
      const every = Math.max(1, Math.floor(log.steps / 500)), acts = data.actions.map(() => 0), follow = policies.map(() => 0);
      let n = 0, same = 0;
      for (let j = 0; j < log.steps; j += every, n++) {
        const found = promised(log.psi, [j], state.weights);
        acts[found.action]++; follow[found.follows]++; same += found.action === log.action.at(j);
      }
      put(sum, h("h3", {}, `Over ${n} logged states`), bars(data.actions.map((name, a) => [name, acts[a] / n, false])), h("h3", {}, "Whose policy it follows"),
        bars(policies.map((p, k) => [p.name, follow[k] / n, false]).filter(row => row[1] > 0).sort((p, q) => q[1] - p[1]).slice(0, 12)), h("p", {}, `It does what was logged in ${percent(same / n)} of them.`));
    });
    return h("div", { class: "panel" }, said, strip, sum);
  }

  function onBoard() {
    const picture = h("div"), said = h("p", { class: "said", "aria-live": "polite", "data-told": "board" }), table = h("p", { "data-collected": "" });
    const start = () => { state.at = boards.start[state.board]; state.trail = []; state.collected = boards.names.map(() => 0); state.t = 0; };
    const alive = () => Math.floor(state.at / (4 * boards.cells));
    const over = () => alive() === 0 || state.t >= boards.longest;
    function step() {
      if (!wanting()) return;
      if (over()) { start(); redraw(); return; }
      const found = promised(boards.psi, [state.board, state.at], state.weights), before = alive();
      // It draws its action, as the policy does that is judged: the best of nearly equal values would lead in circles.
      let u = Math.random();
      const drawn = found.sure.findIndex(p => (u -= p) <= 0), action = drawn < 0 ? found.action : drawn;
      state.trail.push(state.at); state.at = boards.next.at(state.board, state.at, action); state.t++;
      boards.colour.forEach((c, coin) => { if ((before >> coin & 1) && !(alive() >> coin & 1)) state.collected[c]++; });
      redraw();
    }
    const go = h("button", { on: { click: () => { if (state.walker) { clearInterval(state.walker); state.walker = null; } else state.walker = setInterval(step, 250); redraw(); } } }, "Walk");
    const one = h("button", { on: { click: step } }, "One step"), again = h("button", { on: { click: () => { start(); redraw(); } } }, "From the start");
    start();
    redraws.push(() => {
      go.textContent = state.walker ? "Stop" : "Walk";
      const side = Math.round(Math.sqrt(boards.cells)), size = 300 / side, pose = state.at % (4 * boards.cells), cell = pose >> 2, way = pose & 3;
      const middle = c => [10 + (c % side + 0.5) * size, 10 + (Math.floor(c / side) + 0.5) * size], [ax, ay] = middle(cell);
      const lines = Array.from({ length: side + 1 }, (_, i) => [s("line", { x1: 10, x2: 310, y1: 10 + i * size, y2: 10 + i * size, stroke: "#ccc" }), s("line", { y1: 10, y2: 310, x1: 10 + i * size, x2: 10 + i * size, stroke: "#ccc" })]);
      const coins = boards.colour.map((c, coin) => { if (!(alive() >> coin & 1)) return null; const [x, y] = middle(boards.coins[state.board][coin]);
        return s("g", {}, s("circle", { cx: x, cy: y, r: size * 0.34, fill: boards.fill[c], stroke: INK }), s("text", { x, y: y + 5, "text-anchor": "middle", style: "font-weight:700;fill:#fff;paint-order:stroke;stroke:#000;stroke-width:3px" }, boards.names[c][0].toUpperCase())); });
      const path = [...state.trail, state.at].map(i => middle((i % (4 * boards.cells)) >> 2).join(",")).join(" ");
      const names = ["east", "south", "west", "north"];
      put(picture, s("svg", { viewBox: "0 0 320 320", width: 320, height: 320, role: "img", "aria-label": `Board; the agent looks ${names[way]}` }, s("rect", { x: 10, y: 10, width: 300, height: 300, fill: "#fafafa", stroke: INK, "stroke-width": 3 }), lines,
        s("polyline", { points: path, fill: "none", stroke: BLUE, "stroke-width": 2, opacity: 0.5 }), coins, s("path", { d: `M ${size * 0.36} 0 L ${-size * 0.28} ${-size * 0.26} L ${-size * 0.28} ${size * 0.26} Z`, fill: BLUE, stroke: "#fff", "stroke-width": 2, transform: `translate(${ax} ${ay}) rotate(${way * 90})` })));
      said.textContent = !wanting() ? "Nothing is wanted: move a slider." : over() ? "The episode is over: walk on for another." : "It would: " + told(promised(boards.psi, [state.board, state.at], state.weights));
      table.textContent = "Collected: " + boards.names.map((name, c) => `${name} ${state.collected[c]} of ${boards.colour.filter(x => x === c).length}`).join(", ") + `; step ${state.t}.`;
    });
    return h("div", { class: "panel" }, chooser("Board", boards.start.map((_, i) => [i, String(i + 1)]), () => state.board, i => { state.board = i; start(); }), h("p", {}, go, " ", one, " ", again), picture, table, said);
  }

  function whatIf() {
    const words = "Move the sliders: the agent is re-targeted at once, without training. Of all known policies it takes what the best of them promises on these preferences (generalised policy improvement, Q = ψ·w).";
    return h("section", {}, h("h2", {}, "What if it wanted something else?"), h("p", {}, words),
      h("div", { class: "row" }, sliders(), boards ? onBoard() : null, log && log.psi ? onLog() : null));
  }

  root.classList.add("psiphi");
  put(root, header(), boards ? whatIf() : null, agents.length > 1 ? agentMap() : null, log && quantities.length > 1 ? rewardMap() : null, log ? replay() : null, boards || !(log && log.psi) ? null : whatIf());
  if (state.y >= quantities.length) state.y = 0;
  if (data.pair) [state.x, state.y] = data.pair;
  firstEpisode();
  redraw();
  return state;
}
