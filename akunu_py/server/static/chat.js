// The chat: conversations are kept in this browser, and answers streamed from this server.
import { render } from "./markdown.js";
import { $, request } from "./server.js";

const [SETTINGS, THEME] = ["akunu-py-settings", "akunu-py-theme"];
const SAVE_MS = 1000; // while an answer grows
const DRAW_SHARE = 4; // drawing takes a fifth of the time at most
const settings = {};
try { Object.assign(settings, JSON.parse(localStorage.getItem(SETTINGS))); } catch { /* damaged: as if there were none */ }
const tabs = new BroadcastChannel("akunu-py");
const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
const blank = () => ({ id: newId(), title: "", revision: 0, updated: 0, messages: [] });
const lastOf = (wanted) => current.messages.findLastIndex(({ role }) => role === wanted);
let current = blank();
let running = null; // the conversation and the message that grow, and what stops them
let editing = null; // the number of the message that is sent again
function make(name, properties, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return Object.assign(made, properties);
}

// A record for each conversation. Of two tabs that go on with one at the same time, the second keeps
// its own under a new id. One that was deleted stays deleted, even while it is being answered.

const database = new Promise((resolve, reject) => {
  const opening = indexedDB.open("akunu-py", 1);
  const onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
  Object.assign(opening, { onupgradeneeded, onsuccess: () => resolve(opening.result), onerror: () => reject(opening.error) });
});
async function stored(mode, work) {
  try {
    const all = (await database).transaction("conversations", mode).objectStore("conversations");
    return await new Promise((resolve, reject) => {
      const [request, { transaction }] = [work(all), all];
      Object.assign(transaction, { oncomplete: () => resolve(request?.result), onabort: () => reject(transaction.error) });
    });
  } catch (error) {
    unkept(error);
    return null;
  }
}
const unkept = ({ message }) => { $("state").textContent = `Nothing can be kept: ${message}`; };
const find = async (id) => Object.assign(blank(), await stored("readonly", (all) => all.get(id)));
const save = (conversation) => stored("readwrite", (all) => {
  const before = all.get(conversation.id);
  before.onsuccess = () => {
    const { id, revision } = conversation, known = before.result?.revision ?? 0;
    if (!known && revision) return; // it was deleted
    const kept = { id: known === revision ? id : newId(), revision: revision + 1, updated: Date.now() };
    all.put({ ...conversation, ...kept });
    all.transaction.addEventListener("complete", () => Object.assign(conversation, kept)); // or it was not kept
  };
});
async function list() {
  history.replaceState(null, "", current.revision ? `#${current.id}` : location.pathname);
  const all = await stored("readonly", (kept) => kept.getAll()) ?? [];
  all.sort((one, other) => other.updated - one.updated);
  $("conversations").replaceChildren(...all.map(({ id, title }) => {
    const open = make("button", { className: "open", textContent: title, title, onclick: () => go(id) });
    const remove = make("button", { className: "delete", textContent: "✕", title: "Delete" });
    remove.onclick = () => sure(remove, () => forget(id));
    return make("li", { id: `kept-${id}`, className: id === current.id ? "current" : "" }, open, remove);
  }));
}
function sure(button, act) {
  const word = button.textContent;
  if (word === "Really?") return act();
  button.textContent = "Really?";
  button.onblur = () => { button.textContent = word; };
  return button.focus();
}
async function forget(id) {
  await stored("readwrite", (all) => (id ? all.delete(id) : all.clear()));
  tabs.postMessage(id);
  await reread(id);
}
async function reread(id) { // one conversation that has changed, or all
  if (running?.conversation.revision && !(await find(running.conversation.id)).revision) running.stop.abort();
  if (id && id !== current.id || running?.conversation === current && !running.stop.signal.aborted) return list();
  current = await find(current.id);
  edit(null);
  show();
  return list();
}
tabs.onmessage = ({ data: id }) => reread(id);
async function go(id = "") {
  current = running?.conversation.id === id ? running.conversation : await find(id);
  $("side").classList.remove("shown");
  edit(null);
  show();
  $("log").scrollTop = $("log").scrollHeight;
  await list();
}

// Requests.

async function* chunks(body, signal) {
  const response = await request("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: {")) yield JSON.parse(event.slice(6));
      else if (event.startsWith(": loading ")) yield { choices: [{ delta: {} }], loading: event.slice(2) };
    }
  }
}
function bodyFor({ messages }) {
  const { system, plain, unthinking, drafts, ...sampling } = settings;
  const said = messages.filter(({ role, content }) => role === "user" || content).map(({ role, content, thinking }) =>
    ({ role, content, ...(thinking && { reasoning_content: thinking }) }));
  return {
    temperature: 0, ...sampling, model: $("model").value, stream: true, timings_per_token: true, show_drafts: true,
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    ...(plain && { num_draft_tokens: 0 }), ...(unthinking && { chat_template_kwargs: { enable_thinking: false } }),
  };
}
function take(message, { error, choices, loading, pieces = [], timings = message.timings }) {
  if (error) throw new Error(error.message);
  const [{ delta = {}, finish_reason: finish } = {}] = choices;
  running.loading = loading;
  message.content += delta.content ?? "";
  message.thinking += delta.reasoning_content ?? "";
  for (let { text, drafted } of pieces) {
    if (!message.runs.length && message.thinking) text = text.trimStart(); // as of the content
    const last = message.runs.at(-1);
    if (last?.[1] === drafted) last[0] += text.length;
    else if (text) message.runs.push([text.length, drafted]);
  }
  return Object.assign(message, { timings }, finish && { stopped: false, cut: finish === "length" });
}
async function answer(message = { role: "assistant", content: "" }) {
  const conversation = current;
  if (!message.content) Object.assign(message, { thinking: "", runs: [] });
  Object.assign(message, { stopped: true, cut: false, error: "" }); // until its end comes, if it does
  if (conversation.messages.at(-1) !== message) conversation.messages.push(message);
  running = { conversation, message, stop: new AbortController() };
  show();
  $("log").scrollTop = $("log").scrollHeight;
  await keep(conversation);
  const saving = setInterval(() => save(conversation), SAVE_MS);
  try {
    if (!$("model").value) await listModels();
    for await (const chunk of chunks(bodyFor(conversation), running.stop.signal)) draw(take(message, chunk));
  } catch (error) {
    if (error.name !== "AbortError") message.error = sentence(error);
  }
  clearInterval(saving);
  running = null;
  show();
  await keep(conversation);
}
async function keep(conversation) {
  await save(conversation);
  tabs.postMessage(conversation.id);
  await list();
}
const sentence = (error) => (error instanceof TypeError ? "The server does not answer." : error.message);
async function listModels() {
  const listed = (await (await request("v1/models")).json()).data;
  const data = listed.filter(({ capabilities }) => capabilities.includes("completion"));
  $("model").replaceChildren(...data.map(({ id }) => new Option(id)));
  if (data.some(({ id }) => id === settings.model)) $("model").value = settings.model;
}
function send() {
  const content = $("text").value;
  if (running || !content.trim()) return;
  if (editing !== null) cut(editing);
  current.messages.push({ role: "user", content });
  current.title ||= content.trim().split("\n")[0].slice(0, 80);
  write("");
  answer();
}
function cut(at) { // later turns are not lost: the conversation stays, and a new one goes on
  edit(null);
  const { title, messages } = current;
  if (!messages.slice(at + 1).some(({ role }) => role === "user")) messages.length = at;
  else current = { ...blank(), title: at ? title : "", messages: messages.slice(0, at) };
}
function edit(index) { // null ends it, and leaves alone what else was typed
  const typed = index === editing ? $("text").value : "";
  editing = index;
  $("editing").hidden = index === null;
  write(current.messages[index]?.content ?? typed);
}
function write(text) {
  $("text").value = text;
  $("text").oninput();
  $("text").focus();
}

// What is shown.
function show() {
  $("empty").hidden = current.messages.length > 0;
  follow(() => $("messages").replaceChildren(...current.messages.map(viewOf)));
  document.title = current.title ? `${current.title} · akunu_py` : "akunu_py";
  $("legend").hidden = !settings.drafts;
  $("drafts").setAttribute("aria-pressed", Boolean(settings.drafts));
  $("theme").textContent = `◐ ${document.documentElement.dataset.theme || "auto"}`;
  [$("send").hidden, $("stop").hidden] = [running !== null, running === null];
  $("elsewhere").hidden = !running || running.conversation === current;
}
function follow(change) { // a reader who is at the end stays there
  const log = $("log"), isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}
function viewOf(message) {
  const [body, foot] = ["body", "foot"].map((className) => make("div", { className }));
  return paint(message, make("article", {}, make("details", {}, make("summary"), make("div")), body, foot));
}
function paint(message, view) {
  const [think, body, foot] = view.children, waits = running?.message === message && !message.content;
  view.classList.add(message.role);
  view.classList.toggle("waiting", waits);
  think.hidden = !message.thinking;
  think.firstChild.textContent = waits ? "Thinking …" : "Thoughts";
  think.lastChild.textContent = message.thinking ?? "";
  render(body, message.content, settings.drafts ? message.runs : null);
  foot.replaceChildren(...footOf(message));
  return view;
}
function* footOf(message) {
  const { role, content, timings, stopped, cut, error } = message, grows = running?.message === message;
  const note = (textContent, className = "note") => make("span", { className, textContent });
  const end = error || (stopped && !grows && "stopped") || (cut && "cut");
  const said = end || (grows && running.loading);
  if (said) yield note(said, error ? "bad" : "note");
  if (timings?.forward_n) {
    const { predicted_n: tokens, predicted_per_second: speed, forward_n: forwards, speedup } = timings;
    yield note(`${tokens.toLocaleString("en")} tokens · ${Math.round(speed).toLocaleString("en")} tokens/s · ` +
      `${(tokens / forwards).toFixed(2)} tokens per pass`);
    if (speedup >= 1.05) yield note(`${speedup.toFixed(1)} times as fast as without drafts`, "note gain");
  }
  if (grows) return;
  const words = [...(role === "user" ? ["Edit", "Copy"] : ["Copy", "Again"]), ...(end && content ? ["Continue"] : [])];
  yield make("span", {}, ...words.map((textContent) => make("button", { className: "plain", textContent })));
}
let [due, cost] = [0, 0];
function draw(message) {
  due ||= setTimeout(() => {
    const begun = performance.now();
    if (running?.message === message && running.conversation === current) follow(() => paint(message, $("messages").lastChild));
    [due, cost] = [0, performance.now() - begun];
  }, Math.max(30, DRAW_SHARE * cost));
}

// What the user does.
async function copy(text, button) {
  const done = await navigator.clipboard?.writeText(text).then(() => "Copied", () => null); // over HTTP from here only
  button.textContent = done ?? "Not allowed";
  setTimeout(() => { button.textContent = "Copy"; }, 1200);
}
function remember(name, text) {
  try { localStorage.setItem(name, text); } catch (error) { unkept(error); }
}
function set(name, value) {
  settings[name] = value || value === 0 ? value : undefined;
  remember(SETTINGS, JSON.stringify(settings));
}
const step = (to) => ($(`kept-${current.id}`)?.[to] ?? $("conversations").firstChild)?.firstChild.click();
const acts = { // on a message, by its number
  Edit: (at) => edit(at), Copy: (at, button) => copy(current.messages[at].content, button),
  Again: (at) => answer(cut(at)), Continue: (at) => answer(current.messages[at]),
};
const clicks = {
  new: () => go(), cancel: () => edit(null), help: () => $("keys").showModal(), forget: () => sure($("forget"), forget),
  stop: () => running?.stop.abort(), menu: () => $("side").classList.toggle("shown"), close: () => clicks.settings(),
  settings: () => $("settings").setAttribute("aria-expanded", !($("drawer").hidden = !$("drawer").hidden)),
  drafts: () => show(set("drafts", !settings.drafts)),
  theme: ({ dataset } = document.documentElement) =>
    show(remember(THEME, dataset.theme = { "": "dark", dark: "light" }[dataset.theme] ?? "")),
};
const keys = { // with Alt
  KeyN: clicks.new, KeyD: clicks.drafts, KeyS: clicks.settings,
  ArrowUp: () => step("previousSibling"), ArrowDown: () => step("nextSibling"),
  KeyR: () => running || lastOf("assistant") < 0 || acts.Again(lastOf("assistant")),
};
document.onkeydown = (event) => {
  const [box, inBox] = [$("text"), event.target === $("text")];
  if (event.altKey && !event.ctrlKey && keys[event.code]) keys[event.code]();
  else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (running) clicks.stop();
    else if (editing !== null) edit(null);
    else if (!$("drawer").hidden) clicks.settings();
    else $("side").classList.remove("shown");
  } else if (inBox && event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
  else if (inBox && event.key === "ArrowUp" && !box.value && !running && lastOf("user") >= 0) edit(lastOf("user"));
  else if (event.key === "?" && (inBox ? !box.value : !event.target.matches("input, textarea"))) clicks.help();
  else return;
  event.preventDefault();
};
$("messages").onclick = ({ target }) => {
  const act = target.closest(".foot") && !(running && target.textContent !== "Copy") && acts[target.textContent];
  if (target.matches("figcaption button")) copy(target.closest("figure").querySelector("code").textContent, target);
  else if (act) act([...$("messages").children].indexOf(target.closest("article")), target);
};
$("log").onclick = () => $("side").classList.remove("shown");
$("examples").onclick = ({ target }) => target.matches("button") && write(target.textContent);
for (const [id, act] of Object.entries(clicks)) $(id).onclick = () => act();
$("ask").onsubmit = (event) => send(event.preventDefault());
for (const field of $("drawer").querySelectorAll("[name]")) {
  const held = { checkbox: "checked", number: "valueAsNumber" }[field.type] ?? "value";
  if (settings[field.name] !== undefined) field[held] = settings[field.name];
  field.onchange = () => set(field.name, field[held]);
}
$("text").oninput = () => {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight}px`;
};
$("model").onchange = () => set("model", $("model").value);
await go(location.hash.slice(1));
listModels().catch((error) => { $("state").textContent = sentence(error); });
