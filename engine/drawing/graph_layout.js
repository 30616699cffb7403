"use strict";
// Positions of boxes in layers, after Sugiyama, Tagawa and Toda: layers by longest path, order in a layer by
// barycenters, coordinates by repeated averaging with isotonic regression, so that boxes keep their order and distance.
const GAP_X = 18, GAP_Y = 34, SWEEPS = 6, MAX_BENDS = 40000;

// sizes: [[width, height]], edges: [[from, to]], pins: -1 for a box that is at the top, 1 at the bottom, 0 elsewhere.
// Returns boxes [[x, y]], for each edge its bends [[x, top, bottom]] through the rows between, none for an edge that was
// turned round to break a cycle, and the size of it all.
function layoutLayers(sizes, edges, pins) {
  const count = sizes.length;
  const turned = breakCycles(count, edges);
  const above = Array.from({ length: count }, () => []), below = Array.from({ length: count }, () => []);
  const down = edges.map(([a, b], i) => (turned[i] ? [b, a] : [a, b]));
  for (const [a, b] of down) { below[a].push(b); above[b].push(a); }
  const layer = longestPaths(count, above, below, pins);
  const width = sizes.map((s) => s[0]), isBend = new Array(count).fill(false), layers = layer.slice();
  const chains = new Map(), bends = [];
  const links = [];
  const total = down.reduce((sum, [a, b]) => sum + Math.max(0, layer[b] - layer[a] - 1), 0);
  down.forEach(([a, b], i) => {
    let last = a;
    const own = [];
    for (let y = layer[a] + 1; total <= MAX_BENDS && y < layer[b]; y++) {
      const key = a * 100003 + y; // edges of one box share their way down
      let bend = chains.get(key);
      if (bend === undefined) {
        bend = width.length;
        chains.set(key, bend);
        width.push(4); isBend.push(true); layers.push(y); above.push([]); below.push([]);
        links.push([last, bend]);
      }
      own.push(bend);
      last = bend;
    }
    links.push([last, b]);
    bends[i] = own;
  });
  const up = width.map(() => []), dn = width.map(() => []);
  for (const [a, b] of links) { dn[a].push(b); up[b].push(a); }
  const rows = [];
  layers.forEach((y, v) => (rows[y] = rows[y] || []).push(v));
  for (let y = 0; y < rows.length; y++) rows[y] = rows[y] || [];
  orderRows(rows, up, dn);
  const x = placeRows(rows, up, dn, width, isBend);
  const top = new Array(width.length).fill(0), high = [], start = [];
  let y = 0;
  rows.forEach((row, i) => {
    high[i] = row.reduce((h, v) => Math.max(h, v < count ? sizes[v][1] : 0), 0);
    start[i] = y;
    for (const v of row) top[v] = y + (v < count ? (high[i] - sizes[v][1]) / 2 : high[i] / 2);
    y += high[i] + GAP_Y;
  });
  let least = Infinity, most = -Infinity;
  width.forEach((w, v) => { least = Math.min(least, x[v] - w / 2); most = Math.max(most, x[v] + w / 2); });
  if (!width.length) least = most = 0;
  return {
    boxes: sizes.map((s, v) => [x[v] - s[0] / 2 - least, top[v]]),
    bends: edges.map((_, i) => (turned[i] ? [] : bends[i].map((v) => [x[v] - least, start[layers[v]], start[layers[v]] + high[layers[v]]]))),
    width: most - least, height: Math.max(0, y - GAP_Y),
  };
}

function breakCycles(count, edges) {
  const out = Array.from({ length: count }, () => []), state = new Uint8Array(count);
  const turned = edges.map(() => false);
  edges.forEach(([a, b], i) => (a === b ? (turned[i] = false) : out[a].push([b, i])));
  for (let root = 0; root < count; root++) {
    if (state[root]) continue;
    const stack = [[root, 0]];
    state[root] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      if (top[1] === out[top[0]].length) { state[top[0]] = 2; stack.pop(); continue; }
      const [b, i] = out[top[0]][top[1]++];
      if (state[b] === 1) turned[i] = true;
      else if (!state[b]) { state[b] = 1; stack.push([b, 0]); }
    }
  }
  return turned;
}

function longestPaths(count, above, below, pins) {
  const layer = new Array(count).fill(0), left = above.map((a) => a.length), order = [];
  for (let v = 0; v < count; v++) if (!left[v]) order.push(v);
  for (let i = 0; i < order.length; i++) {
    for (const b of below[order[i]]) {
      layer[b] = Math.max(layer[b], layer[order[i]] + 1);
      if (!--left[b]) order.push(b);
    }
  }
  for (const v of order) { // sources, such as constants, are just above their readers
    if (!above[v].length && below[v].length && !pins[v]) layer[v] = Math.min(...below[v].map((b) => layer[b])) - 1;
  }
  // Pinned boxes have rows of their own: in the row of a taller box, an edge through them would pass behind that box.
  const inner = order.filter((v) => !pins[v]).map((v) => layer[v]);
  const least = inner.reduce((a, b) => Math.min(a, b), Infinity), most = inner.reduce((a, b) => Math.max(a, b), -Infinity);
  const down = pins.some((pin) => pin < 0) ? 1 - least : 0;
  for (let v = 0; v < count; v++) layer[v] = pins[v] < 0 ? 0 : pins[v] > 0 ? most + down + 1 : layer[v] + down;
  return layer;
}

function orderRows(rows, up, down) {
  const at = [];
  const number = (row) => row.forEach((v, i) => (at[v] = i));
  rows.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const isDown = sweep % 2 === 0, near = isDown ? up : down;
    for (let i = 0; i < rows.length; i++) {
      const row = rows[isDown ? i : rows.length - 1 - i];
      const weight = new Map(row.map((v) => [v, near[v].length ? mean(near[v], at) : at[v]]));
      row.sort((a, b) => weight.get(a) - weight.get(b));
      number(row);
    }
  }
}

function mean(items, value) {
  let sum = 0;
  for (const item of items) sum += value[item];
  return sum / items.length;
}

function placeRows(rows, up, down, width, isBend) {
  const x = new Array(width.length).fill(0);
  for (const row of rows) {
    let left = 0;
    for (const v of row) { x[v] = left + width[v] / 2; left += width[v] + GAP_X; }
    for (const v of row) x[v] -= left / 2;
  }
  // Neighbours above and below at once: with one side only, a chain would drift aside, a little with each layer.
  const near = up.map((above, v) => above.concat(down[v]));
  for (let sweep = 0; sweep < 2 * SWEEPS; sweep++) {
    for (let i = 0; i < rows.length; i++) {
      const row = rows[sweep % 2 ? rows.length - 1 - i : i];
      settle(row, row.map((v) => (near[v].length ? mean(near[v], x) : x[v])),
        row.map((v) => (isBend[v] ? 3 : near[v].length ? 1 : 0.1)), width, x);
    }
  }
  return x;
}

// The least squares of wanted positions under the condition that neighbours do not overlap.
function settle(row, wanted, weight, width, x) {
  const offset = [0];
  for (let i = 1; i < row.length; i++) offset[i] = offset[i - 1] + (width[row[i - 1]] + width[row[i]]) / 2 + GAP_X;
  const blocks = [];
  for (let i = 0; i < row.length; i++) {
    let block = [wanted[i] - offset[i], weight[i], 1];
    while (blocks.length && blocks[blocks.length - 1][0] > block[0]) {
      const last = blocks.pop(), sum = last[1] + block[1];
      block = [(last[0] * last[1] + block[0] * block[1]) / sum, sum, last[2] + block[2]];
    }
    blocks.push(block);
  }
  let i = 0;
  for (const [value, , size] of blocks) for (let k = 0; k < size; k++, i++) x[row[i]] = value + offset[i];
}
