// Explains destinations as they are typed, by the policy as it is typed; the button does the same without.
"use strict";

// After the last key.
const REST = 400;

const policy = document.getElementById("policy");
const explain = policy.querySelector("[formaction]");
let timer = null;
let asked = null;

async function ask() {
  asked?.abort();
  const current = (asked = new AbortController());
  const response = await fetch(explain.formAction, {
    method: "POST",
    body: new URLSearchParams(new FormData(policy)),
    signal: current.signal,
  });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  // A refusal is a page with nothing but its problem.
  const fresh = page.getElementById("decisions") ?? page.querySelector(".problem");
  if (fresh && !current.signal.aborted) document.getElementById("decisions").replaceChildren(...document.importNode(fresh, true).childNodes);
}

policy.addEventListener("input", () => {
  clearTimeout(timer);
  // What is not asked now is asked with the next key, or by the button.
  timer = setTimeout(() => ask().catch(() => {}), REST);
});
