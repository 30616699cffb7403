// The timeline of a page. Spans of a track lie in rows by how deep they are nested; counters are drawn below them.
(() => {
  const ROW = 17, HEAD = 16, GAP = 6, RULER = 18, COUNTER = 46, DARK = "#1c2430";
  const $ = (id) => document.getElementById("timeline-" + id);
  const canvas = $("canvas"), context = canvas.getContext("2d"), length = Math.max(1, TIMELINE.length);
  const state = { from: 0, span: length, selected: null, rows: [] };
  const time = (ns) => (ns >= 1e9 ? (ns / 1e9).toFixed(3) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : (ns / 1e3).toFixed(1) + " \u00b5s");
  const bytes = (n) => (n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " bytes");

  let y = RULER;
  for (const track of TIMELINE.tracks) {
    const ends = [];
    let deepest = 0;
    track.depth = track.spans.map(([start, duration]) => {
      while (ends.length && ends[ends.length - 1] <= start) ends.pop();
      ends.push(start + duration);
      deepest = Math.max(deepest, ends.length);
      return ends.length - 1;
    });
    track.y = y;
    y += HEAD + deepest * ROW + GAP;
  }
  for (const counter of TIMELINE.counters) {
    counter.y = y;
    counter.most = Math.max(1, ...counter.values.map((v) => v[1]));
    y += HEAD + COUNTER + GAP;
  }
  canvas.style.height = y + "px";

  let isQueued = false;
  function redraw() {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(() => { isQueued = false; draw(); });
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(y * ratio);
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue("--" + name);
    const text = colour("text"), faint = colour("faint"), line = colour("line"), accent = colour("accent");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colour("ground"); context.fillRect(0, 0, width, y);
    context.font = "11px ui-monospace, monospace"; context.textBaseline = "middle";
    const at = (ns) => ((ns - state.from) / state.span) * width;
    ruler(width, at, faint, line);
    for (const track of TIMELINE.tracks) {
      context.fillStyle = text; context.fillText(track.name, 4, track.y + HEAD / 2);
      let drawn = -1;
      track.spans.forEach((span, i) => {
        const x = at(span[0]), x2 = at(span[0] + span[1]);
        if (x2 < 0 || x > width) return;
        const top = track.y + HEAD + track.depth[i] * ROW, isSelected = state.selected && state.selected.span === span;
        if (x2 - x < 0.5 && !isSelected) { // many short ones in a pixel are one line
          const place = Math.round(x) * 8 + track.depth[i];
          if (place === drawn) return;
          drawn = place;
        }
        const left = Math.max(x, -2), wide = Math.max(1, Math.min(x2, width + 2) - left);
        context.fillStyle = span[3]; context.fillRect(left, top, wide, ROW - 2);
        if (wide > 3) { context.strokeStyle = isSelected ? accent : faint; context.lineWidth = isSelected ? 2.5 : 0.7; context.strokeRect(left, top, wide, ROW - 2); }
        else if (isSelected) { context.fillStyle = accent; context.fillRect(left - 1, top, 3, ROW - 2); }
        const most = Math.floor((wide - 6) / 6.7);
        if (most > 2) { context.fillStyle = DARK; context.fillText(span[2].length > most ? span[2].slice(0, most - 1) + "\u2026" : span[2], left + 3, top + ROW / 2 - 1); }
      });
    }
    for (const counter of TIMELINE.counters) drawCounter(counter, at, width, text, accent);
  }

  function ruler(width, at, faint, line) {
    let step = 10 ** Math.floor(Math.log10(Math.max(1, state.span / 4)));
    if (state.span / step > 10) step *= state.span / step > 20 ? 5 : 2;
    context.strokeStyle = line; context.fillStyle = faint; context.lineWidth = 1;
    for (let ns = Math.ceil(state.from / step) * step, n = 0; ns <= state.from + state.span && n < 60; ns += step, n++) {
      const x = at(ns);
      context.beginPath(); context.moveTo(x, 0); context.lineTo(x, y); context.stroke();
      if (x < width - 60) context.fillText(time(ns), x + 3, RULER / 2);
    }
  }

  function drawCounter(counter, at, width, text, accent) {
    const base = counter.y + HEAD + COUNTER, high = (value) => base - (value / counter.most) * COUNTER;
    context.fillStyle = text; context.fillText(`${counter.name}: at most ${bytes(counter.most)}`, 4, counter.y + HEAD / 2);
    context.fillStyle = accent; context.globalAlpha = 0.5;
    context.beginPath(); context.moveTo(0, base);
    let last = 0;
    for (const [ns, value] of counter.values) {
      const x = Math.max(-1, Math.min(width + 1, at(ns)));
      context.lineTo(x, high(last)); context.lineTo(x, high(value));
      last = value;
    }
    context.lineTo(width, high(last)); context.lineTo(width, base); context.fill();
    context.globalAlpha = 1;
  }

  function clamp() {
    state.span = Math.min(length * 1.02, Math.max(200, state.span));
    state.from = Math.min(Math.max(-length * 0.01, state.from), length * 1.01 - state.span);
  }

  function zoom(factor, part = 0.5) {
    const anchor = state.from + state.span * part, before = state.span;
    state.span /= factor;
    clamp();
    state.from = anchor - ((anchor - state.from) / before) * state.span;
    clamp(); redraw();
  }

  const fit = () => { state.from = 0; state.span = length * 1.02; clamp(); redraw(); };
  const move = (part) => { state.from += state.span * part; clamp(); redraw(); };

  function hit(event) {
    const area = canvas.getBoundingClientRect(), ns = state.from + ((event.clientX - area.left) / area.width) * state.span;
    const top = event.clientY - area.top, slack = (state.span / area.width) * 2;
    for (const track of TIMELINE.tracks) {
      for (let i = track.spans.length - 1; i >= 0; i--) {
        const [start, duration] = track.spans[i], row = track.y + HEAD + track.depth[i] * ROW;
        if (top >= row && top < row + ROW && ns >= start - slack && ns <= start + duration + slack) return { track, span: track.spans[i], i };
      }
    }
    return null;
  }

  function select(found) {
    state.selected = found;
    const about = $("about");
    about.replaceChildren();
    if (found) {
      const [start, duration, name, , details] = found.span;
      const bold = document.createElement("b");
      bold.textContent = name;
      const rest = Object.entries(details).map(([key, value]) => `${key} ${/bytes/.test(key) ? bytes(value) : value}`);
      about.append(bold, ` on ${found.track.name}: ${[time(duration) + ", from " + time(start), ...rest].join("; ")}`);
    }
    redraw();
  }

  function step(by) {
    const track = state.selected ? state.selected.track : TIMELINE.tracks[0];
    if (!track) return;
    const i = Math.max(0, Math.min(track.spans.length - 1, (state.selected ? state.selected.i : -by) + by));
    const span = track.spans[i];
    if (span[0] < state.from || span[0] + span[1] > state.from + state.span) { state.from = span[0] + span[1] / 2 - state.span / 2; clamp(); }
    select({ track, span, i });
  }

  $("fit").onclick = fit;
  $("in").onclick = () => zoom(1.5);
  $("out").onclick = () => zoom(1 / 1.5);
  canvas.onkeydown = (event) => {
    const actions = { ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), "+": () => zoom(1.5), "=": () => zoom(1.5),
      "-": () => zoom(1 / 1.5), "0": fit, Escape: () => select(null), n: () => step(1), p: () => step(-1) };
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  };
  let held = null, moved = 0;
  canvas.onpointerdown = (event) => { canvas.setPointerCapture(event.pointerId); held = event.clientX; moved = 0; };
  canvas.onpointermove = (event) => {
    if (held === null) return;
    moved += Math.abs(event.clientX - held);
    move((held - event.clientX) / canvas.clientWidth);
    held = event.clientX;
  };
  canvas.onpointerup = (event) => { held = null; if (moved < 4) select(hit(event)); };
  canvas.onpointercancel = () => { held = null; };
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return; // the page scrolls
    event.preventDefault();
    const area = canvas.getBoundingClientRect();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return move(event.deltaX / area.width);
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), (event.clientX - area.left) / area.width);
  }, { passive: false });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  fit();
  // For scripts that drive the page.
  window.timelineView = { state, draw, zoom, step };
})();
