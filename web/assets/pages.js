// What pages do better with a script: they show what changes as it changes, and count down. All of it is there without.
"use strict";

// Between two looks at what no event tells of: logs, and what is used. A part may ask for less, in seconds.
const PAUSE = 1000 * (document.querySelector("[data-pause]")?.dataset.pause ?? 10);
// Before a stream of events that ended is opened again.
const AGAIN = 3000;
// Several events at once are one reason to look.
const GATHER = 500;

// An invitation's token follows `#` in its link, and goes nowhere but into the form.
function takeFragment() {
  const token = location.hash.slice(1);
  const fields = document.querySelectorAll("[data-fragment]");
  if (!token || fields.length === 0) return;
  for (const field of fields) field.value = token;
  history.replaceState(null, "", location.pathname);
}

function inWords(seconds) {
  if (seconds <= 0) return "now";
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (hours > 0) return `in ${hours} h ${minutes} min`;
  return minutes > 0 ? `in ${minutes} min ${seconds % 60} s` : `in ${seconds} s`;
}

function countDown() {
  for (const time of document.querySelectorAll("time[data-until]")) {
    time.title ||= time.textContent;
    time.textContent = inWords(Math.round((Date.parse(time.dateTime) - Date.now()) / 1000));
  }
}

// Puts in what the server shows now, part by part; not where somebody is at work.
async function refresh() {
  const parts = document.querySelectorAll("[data-live]");
  if (parts.length === 0 || document.hidden) return;
  const response = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!response.ok || response.redirected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").querySelectorAll("[data-live]");
  if (fresh.length !== parts.length) return;
  parts.forEach((part, number) => {
    const shown = part.dataset.shown ?? "";
    const next = fresh[number].innerHTML;
    if (shown === next || part.contains(document.activeElement)) return;
    part.replaceChildren(...document.importNode(fresh[number], true).childNodes);
    part.dataset.shown = next;
  });
  countDown();
}

// A server that is away is asked again.
const look = () => refresh().catch(() => {});

// Looks again with every event of the team, while somebody sees the page.
async function follow() {
  const gone = new AbortController();
  document.addEventListener("visibilitychange", () => gone.abort(), { once: true });
  const { changes } = document.body.dataset;
  const response = await fetch(changes, { headers: { accept: "text/event-stream" }, signal: gone.signal });
  if (!response.ok) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let timer = null;
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    if (!/^data:/m.test(piece.value)) continue;
    clearTimeout(timer);
    timer = setTimeout(look, GATHER);
  }
}

takeFragment();
addEventListener("hashchange", takeFragment);
countDown();
setInterval(countDown, 1000);
if (document.querySelector("[data-live]")) {
  setInterval(look, PAUSE);
  document.addEventListener("visibilitychange", look);
  (async () => {
    for (;;) {
      if (!document.hidden) await follow().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  })();
}
