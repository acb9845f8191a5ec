// What the pages share: asking the server, and the place for what went wrong.
export const $ = (id) => document.getElementById(id);

export async function ask(path, question) {
  const given = question === undefined ? {} :
    { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) };
  let reply;
  try {
    reply = await fetch(path, given);
  } catch {
    return { error: "The server of this page does not answer any more." };
  }
  const type = reply.headers.get("content-type") || "";
  return type.includes("json") ? reply.json() : { error: (await reply.text()).trim() || reply.statusText };
}

export function complain(text) {
  const place = $("error");
  place.textContent = text || "";
  place.hidden = !text;
}

// Our own server made this HTML and escaped all that is not ours; the page's policy runs no script in it.
export function show(place, html) {
  place.innerHTML = html;
  for (const box of place.querySelectorAll(".paste")) copyable(box);
}

export async function copy(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Could not copy";
  }
  setTimeout(() => { button.textContent = before; }, 2000);
}

function copyable(box) {
  const text = box.querySelector("code").textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${text.slice(0, 80)}`);
  button.addEventListener("click", () => copy(button, text));
  box.append(button);
}
