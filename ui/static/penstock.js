// Conveniences only: each page works without scripts.
"use strict";

const EVERY_MS = 5000;

function enhance(root) {
  for (const button of root.querySelectorAll("button.copy")) button.hidden = !navigator.clipboard;
  for (const choice of root.querySelectorAll(".search select")) {
    choice.addEventListener("change", () => choice.form.requestSubmit());
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// The same page again, unless somebody is reading or typing in it.
function isBusy(main) {
  const active = document.activeElement;
  return document.hidden || !getSelection().isCollapsed || main.querySelector("details[open]") !== null
    || (main.contains(active) && active.matches("input, select, button"))
    || [...main.querySelectorAll("form.action input[name=reason]")].some((input) => input.value);
}

async function refresh() {
  const main = document.querySelector("main");
  if (isBusy(main)) return;
  const response = await fetch(location.href, { headers: { "X-Refresh": "1" } });
  if (!response.ok || response.redirected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
  if (!fresh || isBusy(main)) return;
  main.replaceWith(fresh);
  enhance(fresh);
}

const live = document.querySelector("#live");
const still = document.querySelector("main[data-still], main.narrow") !== null;
if (live && !still) {
  live.parentElement.hidden = false;
  live.checked = localStorage.getItem("penstock-live") !== "no";
  live.addEventListener("change", () => localStorage.setItem("penstock-live", live.checked ? "yes" : "no"));
  setInterval(() => { if (live.checked) refresh().catch(() => {}); }, EVERY_MS);
}
enhance(document);
