// Markdown as DOM nodes, of text that nobody trusts: it becomes text nodes and a few elements, never
// HTML. Links lead to web and mail addresses only, pictures are links, and nothing is loaded.
// Lines that are too deep or not understood stay as they were written.

const DEEPEST = 6; // lists and quotes
const MOST_OPEN = 8; // marks of emphasis that wait for their end
const LONGEST_RULER = 1000; // characters of the line under the head of a table
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const RULER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MARKS = new RegExp([
  /\\[!-/:-@[-`{-~]/, /`+/, /\*\*|__|~~|[*_]/, /!?\[/, /<br ?\/?>/,
  /\]\((?:[^()\s]|\([^()\s]{0,200}\)){1,2000}(?: "[^"\n]{0,300}")?\)/, /https?:\/\/[^\s<>"'`]{1,2000}/,
].map((one) => one.source).join("|"), "g");
const ELEMENTS = { "**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del" };
const settled = new WeakMap(); // where the last block of a view begins: in its text, and in its nodes
/** Shows a text in `view`. Of a text that has grown, only the last block is rendered again. `runs`
 * are the lengths of its stretches, each with what drafted it; null leaves them without colour. */
export function render(view, text, runs) {
  const { at, count } = settled.get(view) ?? { at: 0, count: 0 };
  while (view.childNodes.length > count) view.lastChild.remove();
  const lines = text.slice(at).split("\n");
  let [line, start] = [0, at];
  blocks(lines, view, 0, (index) => {
    if (index === lines.length - 1) return; // what grows may still belong to the block before
    for (; line < index; line += 1) start += lines[line].length + 1;
    settled.set(view, { at: start, count: view.childNodes.length });
  });
  if (runs) colour([...view.childNodes].slice(count), text, at, runs);
}
const add = (parent, name, text = "") => parent.appendChild(wrap(name, text));
function wrap(name, content) {
  const made = document.createElement(name);
  made.append(content);
  return made;
}
function blocks(lines, parent, depth, begin = () => {}) {
  for (let i = 0; i < lines.length;) {
    if (lines[i].trim()) begin(i);
    i = lines[i].trim() ? block(lines, i, parent, depth) : i + 1;
  }
}

/** Adds the block that begins at a line; returns the number of the line after it. */
function block(lines, i, parent, depth) {
  const [line, first] = [lines[i], i];
  const [fenced, heading] = [FENCE.exec(line), HEADING.exec(line)];
  if (fenced) return fence(lines, i, parent, fenced);
  if (heading) inline(heading[2], add(parent, `h${heading[1].length}`));
  else if (RULE.test(line)) add(parent, "hr");
  else if (depth < DEEPEST && ITEM.test(line)) return list(lines, i, parent, depth);
  else if (depth < DEEPEST && QUOTE.test(line)) {
    while (i < lines.length && QUOTE.test(lines[i])) i += 1;
    blocks(lines.slice(first, i).map((one) => one.replace(QUOTE, "")), add(parent, "blockquote"), depth + 1);
    return i;
  } else if (line.includes("|") && isRuler(lines[i + 1] ?? "")) return table(lines, i, parent);
  else {
    do i += 1; while (i < lines.length && lines[i].trim() && !interrupts(lines[i], depth));
    inline(lines.slice(first, i).join("\n"), add(parent, "p"));
    return i;
  }
  return i + 1;
}
function interrupts(line, depth) {
  const nests = depth < DEEPEST && (QUOTE.test(line) || /^([-*+]|1[.)])$/.test(ITEM.exec(line)?.[2]));
  return nests || FENCE.test(line) || HEADING.test(line) || RULE.test(line);
}
function fence(lines, i, parent, [opened, mark, language]) {
  const margin = new RegExp(`^ {0,${opened.search(/\S/)}}`);
  const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const inside = [];
  for (i += 1; i < lines.length && !end.test(lines[i]); i += 1) inside.push(lines[i].replace(margin, ""));
  const box = add(parent, "figure"), bar = add(box, "figcaption");
  add(bar, "span", language);
  add(bar, "button", "Copy").type = "button";
  add(add(box, "pre"), "code", inside.join("\n"));
  return i + 1;
}
function list(lines, i, parent, depth) {
  const indent = (line) => line.search(/\S|$/);
  const kind = (line) => (/\d/.test(ITEM.exec(line)[2]) ? "ol" : "ul");
  const afterBlanks = (at) => { while (at < lines.length && !lines[at].trim()) at += 1; return at; };
  const [name, base] = [kind(lines[i]), indent(lines[i])];
  const made = add(parent, name);
  if (name === "ol") made.start = parseInt(lines[i], 10);
  for (;;) {
    const width = ITEM.exec(lines[i])[0].length;
    const inside = [lines[i].slice(width)];
    let next = i + 1;
    for (let after; (after = afterBlanks(next)) < lines.length && indent(lines[after]) > base; next = after + 1) {
      if (after > next) inside.push("");
      inside.push(lines[after].slice(Math.min(indent(lines[after]), width)));
    }
    blocks(inside, add(made, "li"), depth + 1);
    i = afterBlanks(next);
    const isItem = i < lines.length && indent(lines[i]) === base && ITEM.test(lines[i]) && !RULE.test(lines[i]);
    if (!isItem || kind(lines[i]) !== name) return next;
  }
}
const isRuler = (line) => line.includes("|") && line.length < LONGEST_RULER && RULER.test(line);
function table(lines, i, parent) {
  const made = add(add(parent, "div"), "table");
  made.parentNode.className = "scroll";
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/);
  const width = cells(lines[i]).length;
  const row = (line, name) => {
    const shown = add(made, "tr");
    for (const cell of cells(line).slice(0, width)) inline(cell.trim(), add(shown, name));
  };
  row(lines[i], "th");
  for (i += 2; i < lines.length && lines[i].includes("|"); i += 1) row(lines[i], "td");
  return i;
}

/** Adds text with emphasis, code and links. Marks without an end stay text. */
function inline(text, parent) {
  const open = [{ mark: "", node: parent }]; // marks, and what follows them
  const lacking = new Set(); // lengths of marks of code that have no end
  let from = 0; // where the text begins that is not added yet
  const put = (to, end, ...nodes) => {
    open.at(-1).node.append(...(to > from ? [text.slice(from, to)] : []), ...nodes);
    from = MARKS.lastIndex = end;
  };
  const begin = (mark, index, end) => {
    if (open.length === MOST_OPEN) return;
    put(index, end);
    open.push({ mark, node: document.createDocumentFragment() });
  };
  const end = (depth, wrap) => { // the marks above it have no end
    while (open.length > depth + 1) open.at(-2).node.append(open.at(-1).mark, open.pop().node);
    const { mark, node } = open.pop();
    open.at(-1).node.append(...wrap(node, mark));
  };
  MARKS.lastIndex = 0;
  for (let found; (found = MARKS.exec(text));) {
    const { index } = found;
    const isInner = found[0] === open.at(-1).mark.repeat(2) && text[index + 2] === text[index]; // of ***
    const mark = isInner ? text[index] : found[0];
    const after = index + mark.length;
    const bracket = open.findLastIndex((one) => one.mark.endsWith("["));
    if (mark[0] === "\\") {
      put(index, index + 1);
      MARKS.lastIndex = after;
    } else if (mark[0] === "`") {
      const rest = text.slice(after), size = lacking.has(mark.length) ? -1 : rest.search(`(?<!\`)${mark}(?!\`)`);
      if (size < 0) lacking.add(mark.length);
      else {
        put(index, after + size + mark.length);
        add(open.at(-1).node, "code", rest.slice(0, size).replace(/^ (?=.*\S)(.*) $/s, "$1"));
      }
    } else if (mark.startsWith("<")) put(index, after, document.createElement("br"));
    else if (mark.endsWith("[")) {
      if (bracket > 0) {
        put(index, index);
        end(bracket, (node, opened) => [opened, node]);
      }
      begin(mark, index, after);
    } else if (mark[0] === "]" && bracket > 0) {
      put(index, after);
      end(bracket, (node, opened) => [link(mark.slice(2, -1).split(" ")[0], node, opened) ?? [opened, node, mark]].flat());
    } else if (mark.startsWith("http") && bracket < 0) {
      const address = mark.replace(/[.,;:!?)*_~\]]+$/, "");
      put(index, index + address.length, link(address, address) ?? address);
    } else if (mark in ELEMENTS) {
      const [left, right] = [text[index - 1] ?? " ", text[after] ?? " "];
      if (mark[0] === "_" && /\w/.test(left) && /\w/.test(right)) continue; // as in a_name
      const opened = open.findLastIndex((one) => one.mark === mark);
      if (opened > 0 && /\S/.test(left)) {
        put(index, after);
        end(opened, (node) => [wrap(ELEMENTS[mark], node)]);
      } else if (/\S/.test(right)) begin(mark, index, after);
    }
  }
  put(text.length, text.length);
  while (open.length > 1) end(open.length - 1, (node, mark) => [mark, node]);
}

/** A link, or null if it leads anywhere but to the web or to a mailbox. */
function link(address, content, mark = "[") {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!["http:", "https:", "mailto:"].includes(url?.protocol)) return null;
  const [{ href }, className] = [url, mark === "![" ? "picture" : ""];
  return Object.assign(wrap("a", content), { href, title: href, className, target: "_blank", rel: "noopener noreferrer" });
}

/** Colours what was drafted: each line of a text node is a part of the text, and they are in order. */
function colour(nodes, text, at, runs) {
  let [index, end] = [0, runs[0]?.[0] ?? 0]; // of the run
  const texts = nodes.flatMap((root) => {
    const [found, walker] = [[], document.createTreeWalker(root, NodeFilter.SHOW_TEXT)];
    while (walker.nextNode()) if (!walker.currentNode.parentNode.closest("figcaption")) found.push(walker.currentNode);
    return found;
  });
  for (const node of texts) {
    const made = document.createDocumentFragment();
    for (const line of node.data.split(/(?<=\n)/)) {
      const words = line.trimEnd();
      at = Math.max(text.indexOf(words, at), at);
      for (let done = 0, size; done < words.length; done += size) {
        while (index + 1 < runs.length && end <= at + done) end += runs[(index += 1)][0];
        size = Math.min(words.length - done, end > at + done ? end - at - done : Infinity);
        const part = words.slice(done, done + size);
        if (runs[index]?.[1]) add(made, "mark", part).className = runs[index][1];
        else made.append(part);
      }
      at += words.length;
      made.append(line.slice(words.length));
    }
    node.replaceWith(made);
  }
}
