"""Runs code in IPython kernels, for E2B's code interpreter SDKs.

POST /execute                 {"code", "context_id"?, "language"?, "env_vars"?}   lines of JSON, as the code runs
POST /contexts                {"cwd"?, "language"?}                               a new context
GET  /contexts                                                                    all of them
POST /contexts/{id}/restart, DELETE /contexts/{id}, GET /health

A context is a kernel. It keeps what code has defined, and runs one piece of code at a time. The first one is started with
the server, so a sandbox that is made of a warm snapshot has it already.
"""

import asyncio
import json
import os
import queue
import time
import uuid

import tornado.web
from jupyter_client.manager import AsyncKernelManager

PORT = 49999
HOME = os.path.expanduser("~")
# What a result may be shown as, by the names that the SDKs have for it.
FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.sandpiper.chart+json": "chart",
}
# Run in each new kernel: charts are results, as pictures and as data (charts.py).
PRELUDE = f"""%matplotlib inline
import sys as _sys
_sys.path.append({os.path.dirname(os.path.realpath(__file__))!r})
import charts as _charts
_charts.install(get_ipython())
_sys.path.pop()
del _sys, _charts"""
# Around code that has variables of its own.
SET = "import os as _os; _kept = dict(_os.environ); _os.environ.update({!r})"
UNSET = "_os.environ.clear(); _os.environ.update(_kept); del _kept, _os"


class Context:
    def __init__(self, cwd):
        self.id = str(uuid.uuid4())
        self.cwd = cwd
        self.turn = asyncio.Lock()

    async def start(self):
        self.manager = AsyncKernelManager(kernel_name="python3")
        await self.manager.start_kernel(cwd=self.cwd)
        await self.connect()

    async def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=60)
        await self.run_quietly(PRELUDE)

    async def restart(self):
        self.client.stop_channels()
        await self.manager.restart_kernel(now=True)
        await self.connect()

    async def stop(self):
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)

    def shown(self):
        return {"id": self.id, "language": "python", "cwd": self.cwd}

    async def run_quietly(self, code):
        async for _ in self.run(code, counts=False):
            pass

    async def run(self, code, counts=True):
        """What the kernel says of a piece of code, until it waits for the next."""
        request = self.client.execute(code, store_history=counts, allow_stdin=False)
        while True:
            try:
                message = await self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if await self.manager.is_alive():
                    continue
                yield {"type": "error", "name": "ContextEnded", "value": "The kernel ended", "traceback": ""}
                return
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            event = translate(kind, content)
            if event:
                yield event


def translate(kind, content):
    """A message of the kernel, as the SDKs want it."""
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind in ("execute_result", "display_data"):
        data = content["data"]
        result = {name: data[mime] for mime, name in FORMATS.items() if mime in data}
        extra = {mime: value for mime, value in data.items() if mime not in FORMATS}
        return {"type": "result", "is_main_result": kind == "execute_result", "extra": extra, **result}
    if kind == "error":
        traceback = "\n".join(content["traceback"])
        return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": traceback}
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    return None


class Handler(tornado.web.RequestHandler):
    @property
    def contexts(self):
        return self.application.settings["contexts"]

    def body(self):
        return json.loads(self.request.body or b"{}")

    def context(self, id):
        try:
            return self.contexts[id]
        except KeyError:
            raise tornado.web.HTTPError(404, f"There is no context {id}") from None


def check_language(language):
    if language not in (None, "python", "python3"):
        raise tornado.web.HTTPError(400, f"This interpreter runs Python, not {language}")


class Health(Handler):
    def get(self):
        self.write("OK")


class Contexts(Handler):
    def get(self):
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps([context.shown() for context in self.contexts.values()]))

    async def post(self):
        body = self.body()
        check_language(body.get("language"))
        context = Context(body.get("cwd") or HOME)
        await context.start()
        self.contexts[context.id] = context
        self.write(context.shown())


class OneContext(Handler):
    async def delete(self, id):
        context = self.context(id)
        del self.contexts[id]
        await context.stop()
        self.set_status(204)


class Restart(Handler):
    async def post(self, id):
        await self.context(id).restart()
        self.set_status(204)


class Execute(Handler):
    async def post(self):
        body = self.body()
        check_language(body.get("language"))
        id = body.get("context_id")
        context = self.context(id) if id else next(iter(self.contexts.values()))
        variables = body.get("env_vars")
        self.set_header("Content-Type", "application/x-ndjson")
        async with context.turn:
            if variables:
                await context.run_quietly(SET.format(variables))
            async for event in context.run(body.get("code", "")):
                self.write(json.dumps(event) + "\n")
                await self.flush()
            if variables:
                await context.run_quietly(UNSET)
        self.write(json.dumps({"type": "end_of_execution"}) + "\n")


async def main():
    first = Context(HOME)
    await first.start()
    routes = [
        (r"/health", Health),
        (r"/execute", Execute),
        (r"/contexts", Contexts),
        (r"/contexts/([^/]+)/restart", Restart),
        (r"/contexts/([^/]+)", OneContext),
    ]
    tornado.web.Application(routes, contexts={first.id: first}).listen(PORT, "127.0.0.1")
    await asyncio.Event().wait()


asyncio.run(main())
