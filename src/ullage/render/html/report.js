// Copy buttons beside what one pastes. Everything else works without a script.
"use strict";
(function () {
  if (!navigator.clipboard) return;
  for (const box of document.querySelectorAll(".paste")) addCopy(box);
  function addCopy(box) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    const text = box.querySelector("code").textContent;
    button.setAttribute("aria-label", "Copy " + text.slice(0, 80));
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select and copy";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
})();
