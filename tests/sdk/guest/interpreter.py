"""Speaks the code interpreter's protocol inside a sandbox: POST /execute answers with a line of JSON for each thing that
happens, /contexts keeps variables apart. Just enough of a server to show that the SDK's requests reach a sandbox's port."""

import ast
import contextlib
import io
import json
import traceback
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

contexts = {}


def run(code, variables):
    """What happens, as the protocol's messages."""
    lines = ast.parse(code).body
    last = ast.Expression(lines.pop().value) if lines and isinstance(lines[-1], ast.Expr) else None
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(ast.Module(lines, []), "code", "exec"), variables)
            value = eval(compile(last, "code", "eval"), variables) if last else None
        result = [] if value is None else [{"type": "result", "text": repr(value), "is_main_result": True}]
    except Exception as error:
        result = [{"type": "error", "name": type(error).__name__, "value": str(error), "traceback": traceback.format_exc()}]
    return [{"type": "stdout", "text": out.getvalue(), "timestamp": 0}] * bool(out.getvalue()) + result


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size + 2)[:size]
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return json.loads(content) if content else {}

    def answer(self, content, status=200):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self):
        asked = self.body()
        if self.path == "/execute":
            _, variables = contexts.get(asked.get("context_id"), (None, {}))
            self.answer(b"".join(json.dumps(message).encode() + b"\n" for message in run(asked["code"], variables)))
        elif self.path.endswith("/restart"):
            contexts[self.path.split("/")[2]][1].clear()
            self.answer({})
        else:
            one = {"id": str(uuid.uuid4()), "language": asked.get("language") or "python", "cwd": asked.get("cwd") or "/home/user"}
            contexts[one["id"]] = one, {}
            self.answer(one, 201)

    def do_GET(self):
        self.answer([one for one, _ in contexts.values()])

    def do_DELETE(self):
        contexts.pop(self.path.split("/")[2], None)
        self.answer(b"", 204)


ThreadingHTTPServer(("0.0.0.0", 49999), Handler).serve_forever()
