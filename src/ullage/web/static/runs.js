// The Runs page: what was kept, renewed while it is looked at.
import { $, ask, complain, show } from "./ask.js";

const REST = 2000;
const name = new URLSearchParams(location.search).get("name");
let before = "";
list();
if (name) one();

async function list() {
  const found = await ask("/api/runs");
  complain(found.error);
  if (!found.error) {
    const now = JSON.stringify(found.runs);
    if (now !== before) $("list").replaceChildren(...found.runs.map(row));
    before = now;
    $("none").hidden = found.runs.length > 0;
  }
  setTimeout(list, document.hidden ? 5 * REST : REST);
}

function row(run) {
  const line = document.createElement("tr");
  const link = Object.assign(document.createElement("a"), { href: `/runs?name=${encodeURIComponent(run.name)}`, textContent: run.name });
  if (run.name === name) link.setAttribute("aria-current", "true");
  const head = document.createElement("td");
  head.append(link);
  line.append(head, ...[run.when, run.outcome, run.engine, run.command].map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  return line;
}

let shown = "";
async function one() {
  const found = await ask(`/api/runs?name=${encodeURIComponent(name)}`);
  complain(found.error);
  if (found.error) return;
  if (found.html !== shown) show($("report"), found.html);
  shown = found.html;
  if (found.live) setTimeout(one, REST);
}
