// The Why page: a log in, the report out, the log beside it with its evidence marked.
import { $, ask, complain, show } from "./ask.js";

const PAGE = 400;
const picked = { log: null, baseline: null };
let shown = { log: null, first: 1, total: 0 };
let evidence = [];
const WORDS = { root: "first failure: ", cascade: "followed: ", context: "evidence: " };

for (const which of ["log", "baseline"]) {
  const drop = $(`drop-${which}`);
  $(which).addEventListener("change", () => take(which, $(which).files[0]));
  $(`${which}-path`).addEventListener("input", () => { picked[which] = null; $(`${which}-name`).textContent = ""; });
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    take(which, event.dataTransfer.files[0]);
  });
}
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());

async function take(which, file) {
  if (!file) return;
  complain("");
  const name = $(`${which}-name`);
  name.textContent = `Reading ${file.name} …`;
  let found;
  try {
    const reply = await fetch(`/api/logs?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    found = await reply.json();
  } catch {
    found = { error: "The file could not be sent." };
  }
  if (found.error) {
    name.textContent = "";
    complain(found.error);
    return;
  }
  picked[which] = found.id;
  $(`${which}-path`).value = "";
  name.textContent = found.name;
  if (which === "log") explain();
  else if (picked.log || $("log-path").value) explain();
}

const start = new URLSearchParams(location.search);
for (const which of ["log", "baseline"]) if (start.get(which)) $(`${which}-path`).value = start.get(which);
if (start.get("log")) explain();

$("ask").addEventListener("submit", (event) => { event.preventDefault(); explain(); });

async function explain() {
  const log = picked.log || $("log-path").value.trim();
  if (!log) {
    complain("Drop a log, or give its path.");
    $("log-path").focus();
    return;
  }
  const baseline = picked.baseline || $("baseline-path").value.trim();
  complain("");
  $("state").textContent = "Reading …";
  $("report").classList.add("busy");
  const found = await ask("/api/why", {
    logs: [log], baseline: baseline ? [baseline] : [],
    gpu: $("gpu").value.trim(), version: $("version").value.trim(), command: $("command").value.trim(),
  });
  $("state").textContent = "";
  $("report").classList.remove("busy");
  if (found.error) {
    complain(found.error);
    return;
  }
  evidence = found.evidence;
  $("answer").hidden = false;
  show($("report"), found.html);
  link();
  const first = evidence.find((item) => item.log === log && item.role === "root") || evidence.find((item) => item.log === log);
  await open(log, first ? first.line : 1);
}

// Places of evidence become buttons that open the log there.
function link() {
  const places = $("report").querySelectorAll(".lines .at");
  places.forEach((place) => {
    const line = Number(place.dataset.line);
    const item = evidence.find((one) => one.line === line);
    if (!item) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "at";
    button.textContent = place.textContent;
    button.addEventListener("click", () => open(item.log, line, true));
    place.replaceWith(button);
  });
}

async function open(log, line, focus) {
  await load(log, Math.max(1, line - 60), line);
  if (focus) $("lines").focus();
}

async function load(log, first, mark) {
  const query = new URLSearchParams({ log, from: String(first), count: String(PAGE) });
  const found = await ask(`/api/lines?${query}`);
  if (found.error) {
    complain(found.error);
    return;
  }
  shown = { log, first: found.first, total: found.total };
  const roles = new Map(evidence.filter((item) => item.log === log).map((item) => [item.line, item.role]));
  $("lines").replaceChildren(...found.lines.map((text, index) => row(found.first + index, text, roles, mark)));
  const last = found.first + found.lines.length - 1;
  $("log-title").textContent = `Lines ${found.first.toLocaleString()} to ${last.toLocaleString()} of ${found.total.toLocaleString()}`;
  $("earlier").disabled = found.first <= 1;
  $("later").disabled = last >= found.total;
  const at = $("lines").querySelector(".now");
  $("lines").scrollTop = at ? at.offsetTop - $("lines").offsetTop - $("lines").clientHeight / 2 : 0;
}

function row(number, text, roles, mark) {
  const item = document.createElement("li");
  const role = roles.get(number);
  if (role) {
    item.classList.add(role);
    item.append(Object.assign(document.createElement("span"), { className: "sr", textContent: WORDS[role] }));
  }
  if (number === mark) item.classList.add("now");
  const count = document.createElement("span");
  count.className = "n";
  count.textContent = String(number);
  const line = document.createElement("bdi");
  line.textContent = text;
  item.append(count, line);
  return item;
}

$("earlier").addEventListener("click", () => load(shown.log, Math.max(1, shown.first - PAGE)));
$("later").addEventListener("click", () => load(shown.log, shown.first + PAGE));
$("line").addEventListener("change", () => {
  const line = Number($("line").value);
  if (shown.log && line >= 1) open(shown.log, line, true);
});
