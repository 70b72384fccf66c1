// Uploads with their progress, and of files that are dropped on the page. Without a script, the form sends them.
"use strict";

const form = document.querySelector("form[data-upload]");
const uploads = document.getElementById("uploads");
let underWay = 0;

// Each file in a form of its own: each has its progress, and its refusal.
function send(file, show) {
  return new Promise((resolve, reject) => {
    const body = new FormData();
    for (const name of ["form", "once"]) body.append(name, form.querySelector(`[name=${name}]`).value);
    body.append("file", file);
    const request = new XMLHttpRequest();
    request.open("POST", form.getAttribute("action"));
    request.responseType = "document";
    request.upload.onprogress = ({ loaded, total }) => show(loaded / total);
    request.onload = () => {
      const problem = request.response?.querySelector(".problem")?.textContent;
      if (request.status < 400) resolve();
      else reject(problem ?? `refused with ${request.status}`);
    };
    request.onerror = () => reject("the connection broke off; send it again");
    request.send(body);
  });
}

async function upload(file) {
  const item = document.createElement("li");
  const name = document.createElement("bdi");
  const progress = document.createElement("progress");
  const state = document.createElement("span");
  name.textContent = file.name;
  progress.max = 1;
  progress.setAttribute("aria-label", `Upload of ${file.name}`);
  item.append(name, " ", progress, " ", state);
  uploads.append(item);
  try {
    await send(file, (part) => (progress.value = part));
    state.textContent = "sent";
  } catch (problem) {
    state.textContent = problem;
    item.className = "problem";
  }
  progress.remove();
}

// Puts in what is in the folder now.
async function show() {
  const response = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("entries");
  if (fresh) document.getElementById("entries").replaceWith(document.importNode(fresh, true));
}

async function uploadAll(files) {
  underWay += 1;
  // One after the other, so that each gets on.
  for (const file of files) await upload(file);
  underWay -= 1;
  await show().catch(() => {});
}

if (form) {
  const place = document.querySelector("[data-drop]");
  form.querySelector(".drop-hint").hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    uploadAll([...form.elements.file.files]);
    form.reset();
  });
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  // Anywhere: a file that is dropped beside a place for it would take the page's.
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    place.classList.add("over");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) place.classList.remove("over");
  });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    place.classList.remove("over");
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    const isFolder = (item) => item.webkitGetAsEntry()?.isDirectory;
    const files = items.filter((item) => !isFolder(item)).map((item) => item.getAsFile());
    if (items.some(isFolder)) {
      const note = document.createElement("li");
      note.textContent = "A folder was left out: make one here, and drop its files there.";
      uploads.append(note);
    }
    uploadAll(files);
  });
  addEventListener("beforeunload", (event) => {
    if (underWay > 0) event.preventDefault();
  });
}
