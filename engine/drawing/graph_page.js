// The page of a graph. Groups that are open are laid out with their content; a closed one is a box.
(() => {
  const LINE = 14, PAD = 8, LONGEST = 34, CHAR = 6.7, MAX_SHOWN = 160, DARK = "#1c2430";
  const $ = (id) => document.getElementById("graph-" + id);
  const nodes = GRAPH.nodes, edges = GRAPH.edges, canvas = $("canvas"), context = canvas.getContext("2d");
  const inputs = nodes.map(() => []), outputs = nodes.map(() => []);
  edges.forEach((edge, i) => { inputs[edge[1]].push(i); outputs[edge[0]].push(i); });
  const state = { colouring: GRAPH.colourings[GRAPH.first], group: "names", constants: false, root: null, shown: [],
    frames: [], lines: [], named: [], boxOf: new Map(), selected: null, found: [], at: -1, scale: 1, x: 0, y: 0 };
  const stats = { layoutMs: 0, redrawMs: 0, boxes: 0 };
  const short = (text, most = LONGEST) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);
  const time = (ms) => (ms >= 1 ? ms.toFixed(2) + " ms" : (ms * 1000).toFixed(1) + " \u00b5s");
  const leafName = (node) => (node.scope && state.group === "names" ? node.name.split(/[/.]/).pop() || node.name : node.name);

  // -- groups ------------------------------------------------------------------------------------------

  function pathOf(node) {
    const body = node.body || [];
    if (state.group === "names") return node.scope || [];
    return state.group === "subgraphs" && node.part ? [node.part, ...body] : body;
  }

  function build() {
    const root = { name: GRAPH.name, parent: null, children: [], groups: new Map(), isOpen: true };
    nodes.forEach((node, id) => {
      if (node.role === "constant" && !state.constants) return;
      let group = root;
      for (const name of pathOf(node)) {
        if (!group.groups.has(name)) {
          const made = { name, parent: group, children: [], groups: new Map(), isOpen: false };
          group.groups.set(name, made);
          group.children.push(made);
        }
        group = group.groups.get(name);
      }
      group.children.push({ id, node, parent: group });
    });
    simplify(root);
    count(root);
    state.root = root;
    openSome();
  }

  function simplify(group) { // a group of one thing is no group
    group.children = group.children.map((child) => {
      if (!child.children) return child;
      simplify(child);
      if (child.children.length !== 1) return child;
      const only = child.children[0];
      only.parent = group;
      if (only.children) only.name = child.name + "/" + only.name;
      return only;
    });
  }

  function count(group) {
    group.total = 0; group.ms = 0; group.labels = new Map();
    for (const child of group.children) {
      if (child.children) {
        count(child);
        group.total += child.total; group.ms += child.ms;
        child.labels.forEach((n, label) => group.labels.set(label, (group.labels.get(label) || 0) + n));
      } else {
        group.total += 1; group.ms += child.node.ms || 0;
        const label = state.colouring.nodes[child.id];
        if (label >= 0) group.labels.set(label, (group.labels.get(label) || 0) + 1);
      }
    }
  }

  function openSome() { // level by level, the smallest groups first, as long as the picture stays readable
    let shown = state.root.children.length, level = state.root.children;
    while (level.length) {
      const next = [];
      for (const group of level.filter((g) => g.children).sort((a, b) => a.children.length - b.children.length)) {
        if (shown + group.children.length - 1 > MAX_SHOWN) continue;
        group.isOpen = true;
        shown += group.children.length - 1;
        next.push(...group.children);
      }
      level = next;
    }
  }

  function setAll(group, isOpen) {
    for (const child of group.children) if (child.children) { child.isOpen = isOpen; setAll(child, isOpen); }
  }

  const reveal = (item) => { for (let g = item.parent; g; g = g.parent) g.isOpen = true; };

  // -- layout ------------------------------------------------------------------------------------------

  function layout() {
    const begun = performance.now();
    state.boxOf = new Map(); state.shown = []; state.frames = []; state.lines = [];
    collect(state.root);
    lift();
    size(state.root);
    place(state.root, 0, 0);
    state.lines.forEach(wire);
    stats.layoutMs = performance.now() - begun;
    stats.boxes = state.shown.length;
  }

  function collect(group) { // what is visible, and for each node the box that stands for it
    group.edges = new Map(); group.ports = new Map();
    for (const child of group.children) {
      if (child.children && child.isOpen) { state.frames.push(child); collect(child); continue; }
      state.shown.push(child);
      mark(child, child);
    }
  }

  function mark(item, box) {
    if (item.children) for (const child of item.children) mark(child, box);
    else state.boxOf.set(item.id, box);
  }

  function lift() { // an edge belongs to the innermost group around both of its ends
    const drawn = new Set(), number = new Map(state.shown.map((box, i) => [box, i]));
    for (const [a, b, , isLink] of edges) {
      const from = state.boxOf.get(a), to = state.boxOf.get(b);
      if (!from || !to || from === to) continue;
      const key = number.get(from) * 1e7 + number.get(to);
      if (drawn.has(key)) continue;
      drawn.add(key);
      const up = ancestry(from), down = ancestry(to), links = [];
      let i = 0;
      while (up[i + 1] === down[i + 1]) i++;
      // It leaves and enters the groups in between through ports, which all edges of one box share.
      for (let j = up.length - 2; j > i; j--) links.push(link(up[j], up[j + 1], port(up[j], from, 1)));
      links.push(link(up[i], up[i + 1], down[i + 1]));
      for (let j = i + 1; j < down.length - 1; j++) links.push(link(down[j], port(down[j], from, -1), down[j + 1]));
      state.lines.push({ from, to, isLink, links });
    }
  }

  function link(group, from, to) {
    const ends = from.key + ">" + to.key;
    if (!group.edges.has(ends)) group.edges.set(ends, { group, from, to });
    return group.edges.get(ends);
  }

  function port(group, from, pin) {
    const name = pin * from.key;
    if (!group.ports.has(name)) group.ports.set(name, { key: ++keys, pin, from, w: 4, h: 0 });
    return group.ports.get(name);
  }

  let keys = 0;
  function ancestry(item) {
    const path = [];
    for (let each = item; each; each = each.parent) { each.key = each.key || ++keys; path.unshift(each); }
    return path;
  }

  function size(item) {
    if (item.children && (item.isOpen || item === state.root)) {
      item.children.forEach(size);
      item.placed = [...item.children, ...item.ports.values()];
      const index = new Map(item.placed.map((each, i) => [each, i])), links = [...item.edges.values()];
      item.plan = layoutLayers(item.placed.map((each) => [each.w, each.h]),
        links.map((l) => [index.get(l.from), index.get(l.to)]), item.placed.map((each) => each.pin || 0));
      links.forEach((each, i) => (each.bends = item.plan.bends[i]));
      item.text = [`${item.name} (${item.total})` + (item.ms ? ", " + time(item.ms) : "")];
      item.w = Math.max(item.plan.width, short(item.text[0], 60).length * CHAR + 24) + 2 * PAD;
      item.h = item.plan.height + 2 * PAD + LINE + 6;
      return;
    }
    if (item.children) {
      item.text = ["\u25b8 " + short(item.name), item.total + " nodes" + (item.ms ? ", " + time(item.ms) : "")];
    } else {
      const node = item.node, types = node.types || [];
      item.text = [short(node.kind), short(leafName(node))];
      if (types.length) item.text.push(short(types.length > 1 ? types[0] + ", \u2026" : types[0]));
      if (node.ms !== undefined) item.text.push(time(node.ms));
    }
    item.w = Math.max(...item.text.map((t) => t.length)) * CHAR + 2 * PAD;
    item.h = item.text.length * LINE + 2 * PAD - 4 + (item.children ? 6 : 0);
  }

  function place(item, x, y) {
    item.x = x; item.y = y;
    if (!item.plan || !(item.isOpen || item === state.root)) return;
    const slack = (item.w - 2 * PAD - item.plan.width) / 2;
    item.left = x + PAD + slack; item.top = y + PAD + LINE + 6;
    item.placed.forEach((each, i) => place(each, item.left + item.plan.boxes[i][0], item.top + item.plan.boxes[i][1]));
  }

  function wire(line) { // from the bottom of one box to the top of the other, straight through each row between
    const points = [[line.from.x + line.from.w / 2, line.from.y + line.from.h]];
    for (const { group, bends, from, to } of line.links) {
      if (from.pin) points.push([from.x + from.w / 2, from.y]);
      for (const [x, top, bottom] of bends) points.push([group.left + x, group.top + top], [group.left + x, group.top + bottom]);
      if (to.pin) points.push([to.x + to.w / 2, to.y]);
    }
    points.push([line.to.x + line.to.w / 2, line.to.y]);
    line.points = points;
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    line.box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  }

  // -- drawing -----------------------------------------------------------------------------------------

  let isQueued = false;
  function redraw() {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(() => { isQueued = false; draw(); });
  }

  function draw() {
    const begun = performance.now(), ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name);
    const text = colour("text"), faint = colour("faint"), line = colour("line"), raised = colour("raised"), accent = colour("accent");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colour("ground");
    context.fillRect(0, 0, width, height);
    context.setTransform(ratio * state.scale, 0, 0, ratio * state.scale, ratio * state.x, ratio * state.y);
    const left = -state.x / state.scale, top = -state.y / state.scale;
    const right = left + width / state.scale, bottom = top + height / state.scale;
    const isSeen = (x, y, x2, y2) => x <= right && x2 >= left && y <= bottom && y2 >= top;
    const isDetailed = state.scale > 0.28, pen = Math.max(1, 0.6 / state.scale);
    context.font = "11px ui-monospace, monospace";
    context.textBaseline = "top";
    for (const frame of state.frames) {
      if (!isSeen(frame.x, frame.y, frame.x + frame.w, frame.y + frame.h)) continue;
      context.globalAlpha = 0.55; context.fillStyle = raised;
      context.fillRect(frame.x, frame.y, frame.w, frame.h);
      context.globalAlpha = 1;
      context.strokeStyle = frame === state.selected ? accent : line; context.lineWidth = pen * (frame === state.selected ? 2.5 : 1);
      context.strokeRect(frame.x, frame.y, frame.w, frame.h);
      if (state.scale > 0.2) { context.fillStyle = text; context.fillText("\u25be " + short(frame.text[0], 60), frame.x + PAD, frame.y + 5); }
    }
    drawLines(isSeen, isDetailed, pen, faint, accent);
    if (isDetailed) drawSources(isSeen, faint);
    const found = new Set(state.found.map((id) => state.boxOf.get(id)));
    for (const box of state.shown) {
      if (!isSeen(box.x, box.y, box.x + box.w, box.y + box.h)) continue;
      drawBox(box, isDetailed, pen, { text, faint, raised, accent }, found.has(box));
    }
    stats.redrawMs = performance.now() - begun;
  }

  function drawLines(isSeen, isDetailed, pen, faint, accent) {
    for (const isOn of [false, true]) {
      context.strokeStyle = context.fillStyle = isOn ? accent : faint;
      context.lineWidth = pen * (isOn ? 2 : 1);
      context.globalAlpha = isOn ? 1 : 0.75;
      for (const each of state.lines) {
        const touches = each.from === state.selected || each.to === state.selected;
        if (touches !== isOn || !isSeen(...each.box)) continue;
        const points = each.points;
        context.setLineDash(each.isLink ? [3, 4] : []);
        context.beginPath();
        context.moveTo(...points[0]);
        for (let i = 1; i < points.length; i++) {
          const [x1, y1] = points[i - 1], [x2, y2] = points[i], bend = (y2 - y1) / 2;
          context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
        }
        context.stroke();
        if (!isDetailed) continue;
        const [x, y] = points[points.length - 1];
        context.beginPath();
        context.moveTo(x, y); context.lineTo(x - 4, y - 7); context.lineTo(x + 4, y - 7);
        context.fill();
      }
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  function drawSources(isSeen, faint) { // where edges enter a group, the names of their sources that are out of sight
    context.fillStyle = faint;
    state.named = [];
    for (const frame of state.frames) {
      const entries = [...frame.ports.values()].filter(({ pin, x, y, from }) =>
        pin < 0 && isSeen(x, y, x, y) && !isSeen(from.x, from.y, from.x + from.w, from.y + from.h));
      entries.sort((a, b) => a.x - b.x).forEach(({ x, y, from }, i) => { // neighbours are closer than names are long
        const name = short(from.children ? from.name : leafName(from.node), 24);
        context.fillText(name, x + 5, y - 6 + 10 * (i % 3));
        state.named.push(name);
      });
    }
  }

  function drawBox(box, isDetailed, pen, colours, isFound) {
    const label = box.children ? -1 : state.colouring.nodes[box.id];
    const fill = box.children ? colours.raised : label < 0 ? "#fff" : state.colouring.legend[label][1];
    context.fillStyle = fill;
    context.fillRect(box.x, box.y, box.w, box.h);
    if (box.children) {
      let x = box.x;
      const sum = [...box.labels.values()].reduce((a, b) => a + b, 0) || 1;
      for (const [each, n] of [...box.labels].sort((a, b) => a[0] - b[0])) {
        context.fillStyle = state.colouring.legend[each][1];
        context.fillRect(x, box.y + box.h - 7, (box.w * n) / sum, 7);
        x += (box.w * n) / sum;
      }
    }
    const isSelected = box === state.selected;
    context.strokeStyle = isSelected || isFound ? colours.accent : colours.faint;
    context.lineWidth = pen * (isSelected ? 3.5 : isFound ? 2.5 : 1);
    context.strokeRect(box.x, box.y, box.w, box.h);
    if (!isDetailed) return;
    context.fillStyle = box.children ? colours.text : DARK;
    box.text.forEach((line, i) => {
      if (i === 0) context.font = "bold 11px ui-monospace, monospace";
      context.fillText(line, box.x + PAD, box.y + PAD - 2 + i * LINE);
      if (i === 0) context.font = "11px ui-monospace, monospace";
    });
  }

  // -- moving ------------------------------------------------------------------------------------------

  function zoom(factor, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) {
    const scale = Math.min(4, Math.max(0.005, state.scale * factor));
    state.x = px - ((px - state.x) * scale) / state.scale;
    state.y = py - ((py - state.y) * scale) / state.scale;
    state.scale = scale;
    redraw();
  }

  function fit() {
    const root = state.root, width = canvas.clientWidth, height = canvas.clientHeight;
    state.scale = Math.min(1.2, 0.96 * Math.min(width / root.w, height / root.h));
    // A deep graph is not squeezed until nothing can be read: it begins at its top, in its width.
    if (state.scale < 0.3 && root.h > 2 * root.w) state.scale = Math.min(1, Math.max(state.scale, (0.96 * width) / root.w));
    state.x = (width - root.w * state.scale) / 2;
    state.y = Math.max(4, (height - root.h * state.scale) / 2);
    redraw();
  }

  function center(box) {
    state.scale = Math.max(state.scale, 0.6);
    state.x = canvas.clientWidth / 2 - (box.x + box.w / 2) * state.scale;
    state.y = canvas.clientHeight / 2 - (box.y + box.h / 2) * state.scale;
  }

  function toggle(group) {
    const before = [group.x * state.scale + state.x, group.y * state.scale + state.y];
    group.isOpen = !group.isOpen;
    layout();
    state.x = before[0] - group.x * state.scale; state.y = before[1] - group.y * state.scale;
    select(group);
  }

  function hit(event) {
    const area = canvas.getBoundingClientRect();
    const x = (event.clientX - area.left - state.x) / state.scale, y = (event.clientY - area.top - state.y) / state.scale;
    const holds = (box, height = box.h) => x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + height;
    return state.shown.find((box) => holds(box)) || [...state.frames].reverse().find((frame) => holds(frame, LINE + 8)) || null;
  }

  // -- details -----------------------------------------------------------------------------------------

  const element = (tag, text, parent) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  function show(id) { // select a node wherever it is
    const item = find(state.root, id);
    if (!item) { // a constant that is not shown
      state.constants = $("constants").checked = true;
      build(); layout();
      return show(id);
    }
    reveal(item);
    layout();
    center(item);
    select(item);
  }

  function find(group, id) {
    for (const child of group.children) {
      const found = child.children ? find(child, id) : child.id === id ? child : null;
      if (found) return found;
    }
    return null;
  }

  function select(item) {
    state.selected = item;
    const side = $("side");
    side.replaceChildren();
    if (!item) about(side);
    else if (item.children) aboutGroup(side, item);
    else aboutNode(side, item.id);
    redraw();
  }

  function about(side) {
    element("h3", GRAPH.name, side);
    element("p", GRAPH.about + ". Select a node to see its attributes, types and neighbours. Drag to move, turn the wheel to zoom, "
      + "double-click a group to open or close it.", side);
  }

  function rows(side, pairs) {
    const list = element("dl", "", side);
    for (const [key, value] of pairs) if (value !== undefined && value !== "") { element("dt", key, list); element("dd", value, list); }
  }

  function aboutGroup(side, group) {
    element("h3", group.name, side);
    const kinds = new Map();
    const visit = (each) => each.children.forEach((c) => (c.children ? visit(c) : kinds.set(c.node.kind, (kinds.get(c.node.kind) || 0) + 1)));
    visit(group);
    rows(side, [["nodes", String(group.total)], ["time", group.ms ? time(group.ms) : undefined]]);
    element("button", group.isOpen ? "Close this group" : "Open this group", side).onclick = () => toggle(group);
    element("h4", "Operators", side);
    rows(side, [...kinds].sort((a, b) => b[1] - a[1]).map(([kind, n]) => [kind, String(n)]));
  }

  function aboutNode(side, id) {
    const node = nodes[id];
    element("h3", node.name, side);
    rows(side, [["operator", node.kind], ["types", (node.types || []).join("\n")], ["device", node.device], ["subgraph", node.part],
      ["time", node.ms === undefined ? undefined : time(node.ms)], ["in", (node.body || []).join(" / ")]]);
    if (node.details) { element("h4", "Attributes and annotations", side); rows(side, Object.entries(node.details)); }
    const list = (title, numbers, end) => {
      if (!numbers.length) return;
      element("h4", title, side);
      for (const i of numbers.slice(0, 60)) {
        const other = nodes[edges[i][end]], type = (nodes[edges[i][0]].types || [])[edges[i][2]] || "";
        const button = element("button", `${other.kind} ${short(other.name, 60)} ${edges[i][3] ? "(body)" : type}`, side);
        button.onclick = () => show(edges[i][end]);
      }
      if (numbers.length > 60) element("p", `and ${numbers.length - 60} more`, side);
    };
    list("Inputs", inputs[id], 0);
    list("Readers", outputs[id], 1);
  }

  function search() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    state.at = -1;
    state.found = !words.length ? [] : nodes.map((node, id) => id).filter((id) => {
      const node = nodes[id], text = [node.name, node.kind, node.device, node.part, ...(node.types || [])].join("\n").toLowerCase();
      return (state.constants || node.role !== "constant") && words.every((word) => text.includes(word));
    });
    if (!words.length) return select(null), say();
    const side = $("side");
    side.replaceChildren();
    element("h3", `${state.found.length} of ${nodes.length} nodes`, side);
    for (const id of state.found.slice(0, 200)) element("button", `${nodes[id].kind} ${short(nodes[id].name, 60)}`, side).onclick = () => show(id);
    if (state.found.length > 200) element("p", `and ${state.found.length - 200} more`, side);
    say(`${state.found.length} found; Enter goes to the next one`);
    redraw();
  }

  function next(step) {
    if (!state.found.length) return;
    state.at = (state.at + step + state.found.length) % state.found.length;
    show(state.found[state.at]);
    say(`${state.at + 1} of ${state.found.length} found`);
  }

  function say(text) { $("status").textContent = text || `${state.shown.length} boxes shown, ${nodes.length} nodes in all`; }

  function neighbour(end) {
    if (!state.selected || state.selected.children) return;
    const numbers = (end ? outputs : inputs)[state.selected.id].filter((i) => state.constants || nodes[edges[i][end]].role !== "constant");
    if (numbers.length) show(edges[numbers[0]][end]);
  }

  // -- controls ----------------------------------------------------------------------------------------

  function setColour(i) {
    state.colouring = GRAPH.colourings[i];
    count(state.root);
    const legend = $("legend");
    legend.replaceChildren();
    for (const [label, colour] of state.colouring.legend) {
      const entry = element("span", "", legend), mark = element("i", "", entry);
      mark.style.background = colour;
      entry.append(label);
    }
    redraw();
  }

  function renew(change) {
    change();
    build(); layout();
    state.selected = null;
    select(null); fit(); say();
  }

  GRAPH.colourings.forEach((each, i) => { element("option", each.name, $("colour")).value = i; });
  $("colour").value = GRAPH.first;
  const groupings = ["names", ...(nodes.some((node) => node.part) ? ["subgraphs"] : []), "nothing"];
  groupings.forEach((each) => { element("option", each, $("group")).value = each; });
  state.group = groupings.includes("subgraphs") ? "subgraphs" : "names";
  $("group").value = state.group;
  $("colour").onchange = () => setColour(Number($("colour").value));
  $("group").onchange = () => renew(() => { state.group = $("group").value; });
  $("constants").onchange = () => renew(() => { state.constants = $("constants").checked; });
  $("fit").onclick = fit;
  $("in").onclick = () => zoom(1.4);
  $("out").onclick = () => zoom(1 / 1.4);
  for (const [id, isOpen] of [["open", true], ["close", false]])
    $(id).onclick = () => { setAll(state.root, isOpen); layout(); fit(); say(); };
  $("search").oninput = search;
  $("search").onkeydown = (event) => {
    if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { $("search").value = ""; search(); canvas.focus(); }
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) { event.preventDefault(); $("search").focus(); }
  });
  canvas.onkeydown = (event) => {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60], PageUp: [0, 400], PageDown: [0, -400] };
    const actions = { "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit, Home: fit, Escape: () => select(null),
      "[": () => neighbour(0), "]": () => neighbour(1), n: () => next(1), p: () => next(-1),
      Enter: () => state.selected && state.selected.children && toggle(state.selected) };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = moves[event.key], action = actions[event.key];
    if (!move && !action) return;
    event.preventDefault();
    if (move) { state.x += move[0]; state.y += move[1]; redraw(); } else action();
  };
  const pointers = new Map();
  let moved = 0;
  canvas.onpointerdown = (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, event); moved = 0; };
  canvas.onpointermove = (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const others = [...pointers.values()].filter((each) => each.pointerId !== event.pointerId);
    if (others.length === 1) {
      const [other] = others, area = canvas.getBoundingClientRect();
      const gap = (a) => Math.hypot(a.clientX - other.clientX, a.clientY - other.clientY) || 1;
      zoom(gap(event) / gap(last), (event.clientX + other.clientX) / 2 - area.left, (event.clientY + other.clientY) / 2 - area.top);
    } else if (!others.length) { state.x += event.clientX - last.clientX; state.y += event.clientY - last.clientY; redraw(); }
    moved += Math.abs(event.clientX - last.clientX) + Math.abs(event.clientY - last.clientY);
    pointers.set(event.pointerId, event);
  };
  canvas.onpointerup = canvas.onpointercancel = (event) => {
    pointers.delete(event.pointerId);
    if (moved < 4 && event.type === "pointerup") select(hit(event));
  };
  canvas.ondblclick = (event) => { const item = hit(event); if (item && item.children) toggle(item); };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const area = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - area.left, event.clientY - area.top);
  }, { passive: false });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  build(); layout(); setColour(GRAPH.first);
  select(null); fit(); say();
  // For measuring, and for scripts that drive the page.
  window.graphView = { stats, state, draw, layout, show, toggle, fit, zoom };
})();
