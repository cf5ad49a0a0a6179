"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const make = (tag, classes, text) => {
    const made = document.createElement(tag);
    if (classes) made.className = classes;
    if (text !== undefined) made.textContent = text; // never innerHTML: names are the job's
    return made;
  };
  const seconds = (x) =>
    x === 0 ? "0 s" : x < 0 ? "-" + seconds(-x) : x >= 10 ? x.toFixed(0) + " s" : x >= 1 ? x.toFixed(1) + " s" : x >= 0.01 ? x.toFixed(3) + " s" : (x * 1e3).toFixed(1) + " ms";
  const shorten = (text, most) => (text.length <= most ? text : text.slice(0, Math.ceil((most - 1) / 2)) + "…" + text.slice(-Math.floor((most - 1) / 2)));

  // What is shown is in the address, so that a link shows the same: #measure=lost&fold=hosts
  const address = new URLSearchParams(location.hash.slice(1));
  const remember = (name, value) => {
    address.set(name, value);
    try { history.replaceState(null, "", "#" + address); } catch { /* an address that may not change */ }
  };

  function heatMap(heat) {
    const UNKNOWN = 0xffff, COLUMNS_MOST = 48, NUMBERS_UP_TO = 16, FOLD_FROM = 64;
    const count = heat.functions.length;
    const unpack = (text) => {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => bytes[2 * i] | (bytes[2 * i + 1] << 8));
    };
    const values = { share: unpack(heat.share), lost: unpack(heat.above) };
    const largest = { share: 1, lost: heat.aboveMost };
    const place = document.getElementById("heat-map"), said = document.getElementById("heat-said");
    const form = document.getElementById("heat-controls");
    const fits = heat.ranks.length <= FOLD_FROM;
    const state = { measure: "share", fold: fits ? "ranks" : heat.hosts.length > 1 ? "hosts" : "roles", order: fits ? "number" : "worst" };
    for (const name of Object.keys(state)) {
      const asked = form.querySelector(`input[name=${name}][value="${CSS.escape(address.get(name) || state[name])}"]`);
      if (asked) state[name] = asked.value;
    }
    if (!heat.aboveMost) { form.querySelector("input[value=lost]").disabled = true; state.measure = "share"; }
    const opened = new Set();
    let shown = COLUMNS_MOST;

    // A column is some ranks, and shows for each function the one with most: a fold hides nobody.
    function columns() {
      const found = [], groups = new Map();
      heat.ranks.forEach(([number, host, role, accused], rank) => {
        const group = state.fold === "hosts" ? host : state.fold === "roles" ? role : -1;
        if (group < 0 || accused || opened.has(group)) { found.push({ name: String(number), ranks: [rank], accused }); return; }
        if (!groups.has(group)) {
          const column = { name: (state.fold === "hosts" ? heat.hosts : heat.roles)[group] || "?", ranks: [], group };
          groups.set(group, column);
          found.push(column);
        }
        groups.get(group).ranks.push(rank);
      });
      if (state.order === "worst") {
        const odd = (column) => Math.max(...heat.functions.map((one, f) => (one[3] ? 0 : known(most(column, f, "lost")))));
        found.forEach((column) => { column.odd = odd(column); });
        found.sort((a, b) => (b.accused || 0) - (a.accused || 0) || b.odd - a.odd);
      } else found.sort((a, b) => (b.accused && state.fold !== "ranks" ? 1 : 0) - (a.accused && state.fold !== "ranks" ? 1 : 0));
      return found;
    }
    const known = (value) => (value === UNKNOWN ? 0 : value);
    function most(column, f, measure) {
      let best = UNKNOWN;
      for (const rank of column.ranks) {
        const value = values[measure][rank * count + f];
        if (value !== UNKNOWN && (best === UNKNOWN || value > best)) best = value;
      }
      return best;
    }
    const inWords = (raw, measure) => (measure === "share" ? (raw / (UNKNOWN - 1) * 100).toFixed(raw < 0.1 * UNKNOWN ? 1 : 0) + " %" : seconds(raw / (UNKNOWN - 1) * largest.lost));
    const nameOf = (column) => (column.ranks.length === 1 ? "rank " + heat.ranks[column.ranks[0]][0] + " on " + heat.hosts[heat.ranks[column.ranks[0]][1]] : column.name + " (" + column.ranks.length + " ranks, the one with most)");
    function tell(column, f) {
      const [name, where, kind, waits] = heat.functions[f];
      const share = most(column, f, "share"), lost = most(column, f, "lost");
      said.textContent = nameOf(column) + " · " + name + (where ? " (" + where + ")" : "") + " · " + kind + " · " + inWords(known(share), "share") + " of the critical path" +
        (waits ? " · waiting for others, which loses nothing here" : lost === UNKNOWN ? "" : " · " + inWords(lost, "lost") + " per step more than the median peer");
    }
    function head(column, table) {
      const cell = make("th", (column.accused ? "accused " : "") + (column.name.length > 3 ? "long" : ""));
      cell.scope = "col";
      if (column.group === undefined) cell.textContent = column.name;
      else {
        const button = make("button", "", shorten(column.name, 20) + " (" + column.ranks.length + ")");
        button.type = "button";
        button.title = "unfold " + column.name;
        button.addEventListener("click", () => { opened.add(column.group); draw(); });
        cell.append(button);
      }
      table.append(cell);
    }
    function draw() {
      const all = columns(), some = all.slice(0, shown), table = make("table", "heat"), top = make("tr");
      top.append(make("td", "none"));
      some.forEach((column) => head(column, top));
      const header = make("thead"), body = make("tbody");
      header.append(top);
      table.append(header, body);
      let highest = 1;
      heat.functions.forEach((one, f) => some.forEach((column) => { if (state.measure === "share" || !one[3]) highest = Math.max(highest, known(most(column, f, state.measure))); }));
      heat.functions.forEach(([name, where, , , accused], f) => {
        const row = make("tr"), label = make("th", accused ? "accused" : "", shorten(name, 42));
        label.scope = "row";
        label.title = name + (where ? " (" + where + ")" : "");
        if (where) label.append(" ", make("span", "place", where));
        row.append(label);
        some.forEach((column) => {
          const raw = most(column, f, state.measure), level = raw === UNKNOWN ? 0 : Math.min(9, Math.round(9 * Math.sqrt(raw / highest)));
          const cell = make("td", raw === UNKNOWN ? "none" : "h" + level + (level > 5 ? " high" : ""));
          if (raw === UNKNOWN) cell.textContent = "·";
          else if (some.length <= NUMBERS_UP_TO && level > 0) cell.textContent = state.measure === "share" ? Math.round(raw / (UNKNOWN - 1) * 100) : (raw / (UNKNOWN - 1) * largest.lost * 1e3).toFixed(0);
          cell.tabIndex = -1;
          cell.addEventListener("pointerenter", () => tell(column, f));
          cell.addEventListener("focus", () => tell(column, f));
          row.append(cell);
        });
        body.append(row);
      });
      const first = body.querySelector("td");
      if (first) first.tabIndex = 0;
      place.replaceChildren(table);
      if (all.length > some.length) {
        const button = make("button", "", "Show more columns: " + (all.length - some.length) + " are left");
        button.addEventListener("click", () => { shown += COLUMNS_MOST; draw(); });
        place.append(button);
      }
      for (const name of Object.keys(state)) form.querySelector(`input[name=${name}][value=${state[name]}]`).checked = true;
      document.getElementById("heat-hint").textContent =
        (state.measure === "share" ? "Of each step’s critical path (what the rank is busy with, moment by moment), in percent." : "Milliseconds per step more than the median peer: what is lost, where the others wait for it. Waiting itself (·) loses nothing.") +
        (state.fold === "ranks" ? "" : " A folded column shows, for each function, its rank with most; click its name to unfold it. Accused ranks stand apart.");
    }
    const set = (name, value) => { state[name] = value; remember(name, value); opened.clear(); shown = COLUMNS_MOST; draw(); };
    form.addEventListener("change", (event) => set(event.target.name, event.target.value));
    place.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td"), row = cell && cell.parentNode;
      if (!row) return;
      const at = [...row.children].indexOf(cell);
      const next = { ArrowLeft: cell.previousElementSibling, ArrowRight: cell.nextElementSibling,
        ArrowUp: row.previousElementSibling && row.previousElementSibling.children[at], ArrowDown: row.nextElementSibling && row.nextElementSibling.children[at] }[event.key];
      if (next && next.tagName === "TD") { event.preventDefault(); next.focus(); }
    });
    const folds = ["ranks", "hosts", "roles"];
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "m" && heat.aboveMost) set("measure", state.measure === "share" ? "lost" : "share");
      if (event.key === "f") set("fold", folds[(folds.indexOf(state.fold) + 1) % folds.length]);
    });
    draw();
  }

  function stepCharts(steps) {
    const said = document.getElementById("steps-said");
    const bars = steps.tracks[0][0].length;
    let at = 0;
    function tell(track, bar) {
      at = Math.max(0, Math.min(bars - 1, bar));
      const parts = steps.tracks[track].map((part) => part[at]);
      const first = at * steps.bundled, name = steps.bundled > 1 ? "the longest of steps " + first + "-" + (first + steps.bundled - 1) : "step " + first;
      if (parts[0] === null) { said.textContent = name + ": not seen on this rank"; return; }
      const told = parts.map((value, i) => [value, steps.parts[i]]).filter(([value]) => value > 0).map(([value, part]) => part + " " + seconds(value));
      said.textContent = name + ": " + seconds(parts.reduce((a, b) => a + b, 0)) + " · " + told.join(" · ");
    }
    for (const chart of document.querySelectorAll("svg[data-track]")) {
      const track = Number(chart.dataset.track);
      chart.addEventListener("pointermove", (event) => {
        const box = chart.getBoundingClientRect();
        tell(track, Math.floor((event.clientX - box.left) / box.width * bars));
      });
      chart.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (move) { event.preventDefault(); tell(track, at + move); }
      });
    }
  }

  function flameGraph(flame) {
    const place = document.getElementById("flame"), said = document.getElementById("flame-said");
    const frames = flame.frames.map(([parent, name, where, kind, left, width, above, depth], id) => ({ id, parent, name, where, kind, left, width, above, depth, below: [] }));
    frames.forEach((one) => { if (one.parent >= 0) frames[one.parent].below.push(one.id); });
    const whole = frames.reduce((sum, one) => (one.parent < 0 ? sum + one.width : sum), 0);
    const strongest = frames.reduce((most, one) => (one.kind === "collective" ? most : Math.max(most, Math.abs(one.above))), 0.1 * whole) || 1; // a tenth of all: small differences stay pale
    let zoomed = -1, chosen = -1, drawn = new Map();
    const colour = (one) => {
      if (one.kind === "collective") return "waiting";
      const level = Math.min(3, Math.ceil(3 * Math.abs(one.above) / strongest - 0.25));
      return level < 1 || !flame.peers ? "same" : (one.above > 0 ? "more" : "less") + level;
    };
    const tell = (one) => {
      const more = one.above >= 0 ? seconds(one.above) + " more" : seconds(-one.above) + " less";
      said.textContent = one.name + (one.where ? " (" + one.where + ")" : "") + " · " + seconds(one.width) + " " + flame.unit + " · " + (100 * one.width / whole).toFixed(0) + " %" + (flame.peers && one.kind !== "collective" ? " · " + more + " work than the median peer" : "");
    };
    function inside(one) { // whether it is the frame that is looked at, calls it, or is called by it
      if (zoomed < 0) return true;
      const middle = frames[zoomed];
      const eps = 1e-9 + whole * 1e-6;
      return one.depth <= middle.depth ? ancestors(zoomed).has(one.id) : one.left >= middle.left - eps && one.left + one.width <= middle.left + middle.width + eps;
    }
    function ancestors(id) {
      const found = new Set();
      for (let at = id; at >= 0; at = frames[at].parent) found.add(at);
      return found;
    }
    function draw() {
      const left = zoomed < 0 ? 0 : frames[zoomed].left, width = zoomed < 0 ? whole : frames[zoomed].width;
      drawn = new Map();
      let deepest = 0;
      const all = frames.filter(inside).map((one) => {
        const box = make("div", "flame " + colour(one), one.name);
        const from = Math.max(0, (one.left - left) / width), to = Math.min(1, (one.left + one.width - left) / width);
        box.style.left = 100 * from + "%"; // through the object model: no style is written into the page
        box.style.width = 100 * (to - from) + "%";
        box.style.top = 1.35 * one.depth + "rem";
        box.title = one.name + (one.where ? " (" + one.where + ")" : "");
        box.addEventListener("pointerenter", () => tell(one));
        box.addEventListener("click", () => { choose(one.id); zoom(one.id); });
        deepest = Math.max(deepest, one.depth);
        drawn.set(one.id, box);
        return box;
      });
      place.style.height = 1.35 * (deepest + 1) + "rem";
      place.replaceChildren(...all);
      if (drawn.has(chosen)) drawn.get(chosen).classList.add("chosen");
    }
    const zoom = (id) => { zoomed = id; draw(); };
    function choose(id) {
      if (id === undefined || !frames[id]) return;
      if (drawn.has(chosen)) drawn.get(chosen).classList.remove("chosen");
      chosen = id;
      if (drawn.has(id)) drawn.get(id).classList.add("chosen");
      tell(frames[id]);
    }
    place.addEventListener("keydown", (event) => {
      const one = frames[Math.max(chosen, 0)];
      const beside = one.parent >= 0 ? frames[one.parent].below : frames.filter((each) => each.parent < 0).map((each) => each.id);
      const moves = {
        ArrowDown: () => choose(chosen < 0 ? 0 : one.below[0]), ArrowUp: () => choose(one.parent),
        ArrowLeft: () => choose(beside[beside.indexOf(one.id) - 1]), ArrowRight: () => choose(beside[beside.indexOf(one.id) + 1]),
        Enter: () => zoom(one.id), Escape: () => zoom(-1),
      };
      if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
    });
    draw();
  }

  if (data.heat) heatMap(data.heat);
  if (data.steps) stepCharts(data.steps);
  if (data.flame && data.flame.frames.length) flameGraph(data.flame);
})();
