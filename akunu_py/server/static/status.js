import { $, request } from "./server.js";

const SVG = "http://www.w3.org/2000/svg";
const SAMPLES = 60;
let last = null;
const speeds = [];

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
}

function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function size(bytes) {
  const power = bytes > 0 ? Math.min(Math.floor(Math.log2(bytes) / 10), 3) : 0;
  return `${number(bytes / 1024 ** power, power > 1 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

function span(seconds) {
  if (seconds < 90) return `${number(seconds)} s`;
  return seconds < 5400 ? `${number(seconds / 60)} min` : `${number(seconds / 3600)} h`;
}

function showState(word, is) {
  $("state").textContent = word;
  $("state").dataset.is = is;
}

async function poll() {
  await refresh();
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

async function refresh() {
  try {
    show(await (await request("status.json")).json());
  } catch (error) {
    showState(error instanceof TypeError ? "no answer" : error.message, "lost");
  }
}

function show(now) {
  const busy = now.queue.processing > 0;
  const idle = { loading: "loading the model", idle: "no model is loaded" }[now.state];
  showState(idle ?? (busy ? "answering" : "ready"),
    now.state === "ready" && busy ? "busy" : now.state);
  showQueue(now);
  if (now.state !== "ready") return;
  $("board").hidden = false;
  $("model").textContent = now.model.name;
  const blas = now.device.blas ? `, ${now.device.blas} on ${count(now.device.threads, "thread")}` : "";
  $("device").textContent = `${now.device.chip}${blas}, ${now.model.layout} weights, ` +
    `${size(now.model.bytes)}, context ${number(now.model.context)}`;
  $("notices").hidden = now.notices.length === 0;
  $("notices").textContent = now.notices.join(" ");
  showSpeed(now);
  showDrafts(now.sums);
  showCosts(now.costs, now.costs_missing);
  $("models-card").hidden = now.models.length < 2;
  fillTable("models", now.models.map((one) => [one.name, one.state, number(one.requests), size(one.bytes)]));
  showSequences(now);
  showCaches(now.caches);
  last = now;
}

function showQueue(now) {
  $("waiting").textContent = number(now.queue.waiting);
  $("queue-note").textContent = `of ${number(now.queue.limit)} places. ${count(now.answers, "answer")}, ` +
    `${number(now.cancelled)} cancelled, in ${span(now.uptime_s)}`;
}

function showSpeed(now) {
  if (last && last.uptime_s < now.uptime_s) {
    const tokens = now.sums.generated_tokens - last.sums.generated_tokens;
    // Each request counts its own time, so several together count more than there was.
    const seconds = Math.min(now.sums.decode_s - last.sums.decode_s, now.uptime_s - last.uptime_s);
    const speed = tokens > 0 && seconds > 0 ? tokens / seconds : 0;
    speeds.push(speed);
    if (speeds.length > SAMPLES) speeds.shift();
    if (speed > 0) $("speed").textContent = number(speed);
  } else if (now.sums.decode_s > 0) {
    $("speed").textContent = number(now.sums.generated_tokens / now.sums.decode_s);
  }
  $("speed-note").textContent = `${number(now.sums.generated_tokens)} generated; ` +
    `${number(now.sums.prompt_tokens)} of prompts, ${number(now.sums.cached_tokens)} of them cached`;
  const top = Math.max(...speeds, 1);
  const points = speeds.map((speed, at) =>
    `${(120 * (at + SAMPLES - speeds.length)) / (SAMPLES - 1)},${27 - (25 * speed) / top}`);
  $("spark").replaceChildren();
  draw($("spark"), "path", { class: "axis", d: "M0 27.5H120" });
  if (points.length > 1) {
    const from = points[0].split(",")[0];
    draw($("spark"), "path", { class: "area", d: `M${from},27L${points.join("L")}L120,27Z` });
    draw($("spark"), "path", { class: "curve", d: `M${points.join("L")}`, "vector-effect": "non-scaling-stroke" });
  }
}

function showDrafts(sums) {
  const rejected = sums.drafted - sums.accepted;
  $("acceptance").textContent = sums.drafted ? `${number((100 * sums.accepted) / sums.drafted)} %` : "–";
  const origins = Object.entries(sums.drafts).map(([origin, { accepted, drafted }]) =>
    `${origin} ${number(accepted)} of ${number(drafted)}`);
  $("acceptance-note").textContent =
    [`${number(sums.accepted)} accepted, ${number(rejected)} rejected`, ...origins,
      "by position in the draft"].join("; ");
  const places = sums.accepted_by_position.slice(0, 32);
  const top = Math.max(...places, 1);
  $("places").replaceChildren();
  draw($("places"), "path", { class: "axis", d: "M0 27.5H120" });
  const step = 120 / Math.max(places.length, 16);
  places.forEach((count, at) => draw($("places"), "rect", { class: "bar", x: at * step,
    y: 27 - (26 * count) / top, width: step * 0.7, height: (26 * count) / top }));
  $("per-forward").textContent =
    sums.target_forwards ? number(sums.generated_tokens / sums.target_forwards, 2) : "–";
  $("per-forward-note").textContent =
    `${number(sums.target_forwards)} forward passes. Plain decoding makes one token in each.`;
}

function roundTick(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}

function showCosts(levels, missing) {
  $("costs").replaceChildren();
  $("costs").toggleAttribute("hidden", !levels);
  $("costs-note").textContent = levels ? "" : missing || "";
  if (!levels) return;
  const longest = Math.max(...levels.flatMap((level) => level.rounds_ms.map(([tokens]) => tokens)));
  const tick = roundTick(Math.max(...levels.flatMap((level) => level.rounds_ms.map(([, ms]) => ms))) / 3);
  const top = 4 * tick;
  const x = (tokens) => 44 + (426 * (tokens - 1)) / Math.max(longest - 1, 1);
  const y = (ms) => 160 - (150 * ms) / top;
  for (let ms = 0; ms <= top; ms += tick) {
    draw($("costs"), "path", { class: "axis", d: `M44 ${y(ms)}H470` });
    draw($("costs"), "text", { x: 38, y: y(ms) + 4, "text-anchor": "end" }, number(ms, tick < 1 ? 2 : 0));
  }
  for (const tokens of [1, ...[4, 8, 16, 24, 32, 48, 64].filter((tokens) => tokens <= longest)])
    draw($("costs"), "text", { x: x(tokens), y: 178, "text-anchor": "middle" }, tokens);
  const [first] = levels;
  const reached = Math.min(longest, top / first.step_ms);
  draw($("costs"), "path", { class: "steps",
    d: `M${x(1)} ${y(first.step_ms)}L${x(reached)} ${y(first.step_ms * reached)}` });
  levels.forEach((level, index) => {
    const path = level.rounds_ms.map(([tokens, ms]) => `${x(tokens)} ${y(ms)}`).join("L");
    draw($("costs"), "path", { class: index ? "curve long" : "curve", d: `M${path}` });
  });
  for (const [tokens, ms] of first.rounds_ms)
    draw($("costs"), "circle", { class: "dot", cx: x(tokens), cy: y(ms), r: 2.5 });
  const contexts = levels
    .map((level, index) => number(level.context) + (index ? " (paler)" : ""))
    .join(" and ");
  $("costs-note").textContent =
    `Measured at a context of ${contexts}. Dashed: as many tokens one by one. Drafting pays below it.`;
}

function fillTable(id, rows) {
  $(id).replaceChildren(...rows.map((contents) => {
    const row = document.createElement("tr");
    for (const content of contents) {
      const cell = document.createElement("td");
      cell.append(content);
      row.append(cell);
    }
    return row;
  }));
}

function meter(value, max) {
  const element = document.createElement("progress");
  element.max = max;
  element.value = value;
  return element;
}

function showSequences(now) {
  fillTable("sequences", now.sequences.map((one) => {
    const known = one.cached_tokens + one.computed_tokens, decodes = one.phase === "decoding";
    const most = one.max_tokens === null ? now.model.context : one.max_tokens;
    const bar = decodes ? meter(one.generated_tokens, Math.max(most, 1))
      : meter(known, Math.max(one.prompt_tokens, 1));
    const tokens = decodes ? `${number(one.generated_tokens)} of ${number(most)}`
      : `${number(known)} of ${number(one.prompt_tokens)} in the prompt`;
    const drafts = one.drafted ? `${number(one.accepted)} of ${number(one.drafted)}` : "–";
    return [`${one.id}, ${one.kind}`, one.phase, bar, one.phase === "waiting" ? "–" : tokens, drafts];
  }));
  const most = now.queue.parallel;
  $("sequences-note").textContent = (now.sequences.length ? "" : "None now. ") + (most === 1 ?
    "Requests are answered one after another." : now.why_in_turns ||
    `Up to ${number(most)} requests are answered together, in shared forward passes.`);
}

function showCaches(caches) {
  fillTable("caches", caches.map((cache) => [cache.id,
    `${number(cache.tokens)} of ${number(cache.capacity)}`, meter(cache.tokens, cache.capacity),
    size(cache.bytes), cache.busy ? "in use" : span(cache.idle_s)]));
  $("caches-note").textContent = caches.length ? "" : "None yet: the first request makes one.";
}

poll();
