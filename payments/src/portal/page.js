// The Merchant Portal: what a person says there, asked of the API.
"use strict";
const CONFIG = "merchant/api/v1/webhookConfig";
const element = id => document.getElementById(id);
const names = { live: "Live", sandbox: "Sandbox" };
const realm = () => element("open").elements.realm.value;

// Everything that came from elsewhere is shown as text, never as HTML.
function say(text, kind = "") {
  Object.assign(element("message"), { textContent: text, className: kind, hidden: false });
}

async function ask(method, path, body) {
  const headers = { Authorization: `Bearer ${element("key").value.trim()}` };
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  const json = await answer.json();
  if (!answer.ok) throw new Error(json.error?.message || `The server answered ${answer.status}`);
  return json;
}

function show(config) {
  element("realm").textContent = names[config.realm];
  element("saved").textContent = config.url ?? "nothing, so no webhooks are sent";
  element("since").textContent = config.updatedAt ? `since ${new Date(config.updatedAt).toLocaleString()}` : "";
  element("url").value = config.url ?? "";
  element("test").disabled = element("stop").disabled = config.url === null;
  element("config").hidden = false;
}

// One request at a time, and what came of it in words. A configuration is shown last, for it says which buttons there are.
async function attempt(what) {
  const buttons = [...document.querySelectorAll("button")].filter(button => !button.disabled);
  buttons.forEach(button => button.disabled = true);
  say("Asking…");
  let config;
  try {
    config = await what();
  } catch (error) {
    say(error.message, "bad");
  } finally {
    buttons.forEach(button => button.disabled = false);
  }
  if (config) show(config);
}

// What was shown is of another realm or key now.
element("open").addEventListener("input", () => element("config").hidden = element("message").hidden = true);

element("open").addEventListener("submit", event => {
  event.preventDefault();
  attempt(async () => {
    const config = await ask("GET", `${CONFIG}?realm=${realm()}`);
    element("message").hidden = true;
    return config;
  });
});

async function save(url) {
  const config = await ask("PUT", CONFIG, { realm: realm(), url });
  say(url ? `Saved. ${names[config.realm]} webhooks go there from now on.` : `Saved. No ${names[config.realm]} webhooks are sent.`, "good");
  return config;
}

element("config").addEventListener("submit", event => {
  event.preventDefault();
  attempt(() => save(element("url").value.trim()));
});

element("stop").addEventListener("click", () => {
  if (!confirm(`Send no ${names[realm()]} webhooks any more? Those that wait to be sent are cancelled.`)) return;
  attempt(() => save(null));
});

element("test").addEventListener("click", () => attempt(async () => {
  const { deliveryId } = await ask("POST", `${CONFIG}/test`, { realm: realm() });
  say(`On its way. Its Idempotency-Key is ${deliveryId}.`, "good");
}));
