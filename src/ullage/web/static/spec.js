// The Speculation page: a launch and what was measured in, the verdict with its time ledgers out.
import { $, ask, complain, copy, show } from "./ask.js";

const FIELDS = ["command", "gpu", "version", "accept", "accept_length", "allreduce_us", "measured", "batch"];
const start = new URLSearchParams(location.search);
for (const name of FIELDS) if (start.get(name)) $(name).value = start.get(name);
ask("/api/names").then((names) => {
  $("gpus").replaceChildren(...(names.gpus || []).map((value) => Object.assign(document.createElement("option"), { value })));
});
if ($("command").value) judge();

$("ask").addEventListener("submit", (event) => { event.preventDefault(); judge(); });
$("copy-url").addEventListener("click", () => copy($("copy-url"), location.href));

async function judge() {
  if (!$("command").value.trim()) {
    complain("Paste a launch command.");
    $("command").focus();
    return;
  }
  const given = Object.fromEntries(FIELDS.map((name) => [name, $(name).value.trim()]));
  $("state").textContent = "Working …";
  const found = await ask("/api/spec", given);
  $("state").textContent = "";
  complain(found.error);
  if (found.error) return;
  const said = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
  history.replaceState(null, "", `/spec?${said}`);
  $("line").textContent = found.line;
  $("line").parentElement.hidden = false;
  $("says").textContent = found.says;
  show($("report"), found.html);
}
