// The terminal of a sandbox: xterm.js on a WebSocket. src/terminal.rs has the messages.
"use strict";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10000;

const place = document.getElementById("terminal");
const state = document.getElementById("terminal-state");
const encoder = new TextEncoder();

// The terminal makes style elements, and the page's policy lets only those work that bear its word.
const create = document.createElement.bind(document);
document.createElement = (name, options) => {
  const element = create(name, options);
  if (name === "style") element.nonce = place.dataset.nonce;
  return element;
};

const terminal = new Terminal({ cursorBlink: true, scrollback: 5000 });
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(place);
fit.fit();

let socket = null;
let pid = null;
let pause = FIRST_PAUSE;

function connect() {
  const url = new URL(place.dataset.socket, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = new URLSearchParams({ cols: terminal.cols, rows: terminal.rows, ...(pid && { pid }) });
  const current = (socket = new WebSocket(url));
  let isOver = false;
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") return terminal.write(new Uint8Array(data));
    const message = JSON.parse(data);
    if (message.pid) {
      // What was shown before comes again.
      if (pid) terminal.reset();
      ({ pid } = message);
      pause = FIRST_PAUSE;
      state.textContent = "connected";
      send(JSON.stringify({ cols: terminal.cols, rows: terminal.rows }));
    } else {
      isOver = true;
      pid = null;
      state.textContent = message.ended ?? message.error;
    }
  };
  socket.onclose = () => {
    if (isOver || current !== socket) return;
    state.textContent = "connection lost; trying again";
    setTimeout(() => current === socket && connect(), pause);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(message);
}

// In pieces: the server takes none that is too long.
function type(bytes) {
  for (let at = 0; at < bytes.length; at += 16384) send(bytes.subarray(at, at + 16384));
}

terminal.onData((text) => type(encoder.encode(text)));
terminal.onBinary((text) => type(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
terminal.onResize(({ cols, rows }) => send(JSON.stringify({ cols, rows })));
terminal.attachCustomKeyEventHandler((event) => {
  const copies = event.type === "keydown" && event.ctrlKey && event.shiftKey && event.code === "KeyC";
  if (!copies) return !(event.ctrlKey && event.code === "KeyV");
  event.preventDefault();
  if (terminal.hasSelection()) navigator.clipboard?.writeText(terminal.getSelection());
  return false;
});
addEventListener("resize", () => fit.fit());
document.getElementById("terminal-reader").addEventListener("change", ({ target }) => {
  terminal.options.screenReaderMode = target.checked;
});
document.getElementById("terminal-again").addEventListener("click", () => {
  pid = null;
  terminal.reset();
  state.textContent = "connecting";
  socket?.close();
  connect();
  terminal.focus();
});

connect();
terminal.focus();
