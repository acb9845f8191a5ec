// The Campaigns page: effects with their intervals and what is ruled out, renewed while a campaign goes on.
import { $, ask, complain, show } from "./ask.js";

const REST = 3000;
const file = new URLSearchParams(location.search).get("file");
ask("/api/campaigns").then((found) => {
  complain(found.error);
  if (found.error) return;
  $("list").replaceChildren(...found.campaigns.map(item));
  $("none").hidden = found.campaigns.length > 0;
  if (!file && found.campaigns.length === 1 && !found.campaigns[0].error) location.search = `?file=${encodeURIComponent(found.campaigns[0].file)}`;
});
if (file) one();

function item(campaign) {
  const line = document.createElement("li");
  const link = Object.assign(document.createElement("a"), { href: `/campaigns?file=${encodeURIComponent(campaign.file)}`, textContent: campaign.name });
  if (campaign.file === file) link.setAttribute("aria-current", "true");
  line.append(link, Object.assign(document.createElement("span"), { className: "dim", textContent: ` ${campaign.error || campaign.file}` }));
  return line;
}

let shown = "";
async function one() {
  const found = await ask(`/api/campaigns?file=${encodeURIComponent(file)}`);
  complain(found.error);
  if (found.error) return;
  if (found.html !== shown) show($("report"), found.html);
  shown = found.html;
  if (found.live) setTimeout(one, document.hidden ? 5 * REST : REST);
}
