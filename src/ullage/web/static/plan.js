// The Plan page: a launch command in, the verdict out; sliders change the command and ask again.
import { $, ask, complain, copy, show } from "./ask.js";

let set = {};
let asking = false;
let again = null;
let sliders = "";

const start = new URLSearchParams(location.search);
for (const name of ["command", "gpu", "version"]) if (start.get(name)) $(name).value = start.get(name);
ask("/api/names").then((names) => {
  for (const [id, values] of [["gpus", names.gpus], ["models", names.models]]) {
    $(id).replaceChildren(...(values || []).map((value) => Object.assign(document.createElement("option"), { value })));
  }
});
if ($("command").value) plan(true);

$("ask").addEventListener("submit", (event) => { event.preventDefault(); set = {}; plan(true); });
$("gpu").addEventListener("change", () => { if ($("command").value) plan(true); });
$("version").addEventListener("change", () => { if ($("command").value) plan(true); });
$("model").addEventListener("change", () => { if ($("command").value && $("model").value) plan(true); });
$("command").addEventListener("input", () => { set = {}; });
$("copy-url").addEventListener("click", () => copy($("copy-url"), location.href));
$("copy-line").addEventListener("click", () => copy($("copy-line"), $("line").textContent));

// One question at a time; what was turned meanwhile is asked as soon as the answer is there.
async function plan(full) {
  if (asking) {
    again = { full: full || Boolean(again && again.full) };
    return;
  }
  if (!$("command").value.trim()) {
    complain("Paste a launch command.");
    $("command").focus();
    return;
  }
  asking = true;
  const question = {
    command: $("command").value, gpu: $("gpu").value.trim(), version: $("version").value.trim(),
    model: $("model").value.trim(), set, full,
  };
  set = {};
  const found = await ask("/api/plan", question);
  asking = false;
  answer(found, question);
  if (again) {
    const next = again;
    again = null;
    plan(next.full);
  }
}

let rest = 0;
function answer(found, question) {
  complain(found.error);
  if (found.error) return;
  // what was typed while the answer was on its way stays
  if ($("command").value === question.command) $("command").value = found.command;
  if ($("model").value.trim() === question.model) $("model").value = "";
  $("line").textContent = found.line;
  const query = new URLSearchParams({ command: found.command, gpu: $("gpu").value.trim(), version: $("version").value.trim() });
  history.replaceState(null, "", `/plan?${query}`);
  show($("report"), found.html);
  $("says").textContent = found.says;
  turn(found.knobs);
  $("knobs").hidden = !found.knobs.length;
  clearTimeout(rest);
  if (!question.full) rest = setTimeout(() => plan(true), 400);
}

// Sliders stay where they are while they are turned: only their values are set anew.
function turn(knobs) {
  const now = knobs.map((knob) => `${knob.setting}:${knob.values.length}`).join();
  if (now !== sliders && !$("sliders").contains(document.activeElement)) {
    $("sliders").replaceChildren(...knobs.map(slider));
    sliders = now;
  }
  for (const knob of knobs) {
    const input = $(`knob-${knob.setting}`);
    if (input) place(input, knob);
  }
}

function slider(knob) {
  const box = document.createElement("div");
  box.className = "knob";
  const label = Object.assign(document.createElement("label"), { htmlFor: `knob-${knob.setting}`, textContent: knob.label });
  label.append(Object.assign(document.createElement("span"), { textContent: knob.flag }));
  const input = Object.assign(document.createElement("input"), { type: "range", id: `knob-${knob.setting}`, min: "0", step: "1" });
  const output = Object.assign(document.createElement("output"), { htmlFor: input.id });
  input.addEventListener("input", () => {
    const value = input.knob.values[Number(input.value)];
    set = { ...set, [knob.setting]: value };
    say(input, output, value, true);
    plan(false);
  });
  box.append(label, input, output);
  return box;
}

function place(input, knob) {
  const turning = document.activeElement === input && input.knob;
  if (turning && input.knob.values.length === knob.values.length) knob.values = input.knob.values;
  input.knob = knob;
  input.max = String(knob.values.length - 1);
  const at = knob.values.indexOf(knob.value);
  if (at >= 0 && !(turning && knob.setting in set)) input.value = String(at);
  say(input, input.parentElement.querySelector("output"), knob.value, knob.given);
}

function say(input, output, value, given) {
  const text = value >= 1000 ? value.toLocaleString("en") : String(value);
  output.textContent = given ? text : `${text} (default)`;
  output.className = given ? "own" : "";
  input.setAttribute("aria-valuetext", output.textContent);
}
