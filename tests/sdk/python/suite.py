"""Checks of an SDK's public calls, written once for its synchronous and its asynchronous half.

A check is a coroutine that takes what the SDK returns through `of`, which awaits it where there is something to await. In a
synchronous run nothing is, so the coroutine never suspends and needs no event loop.
"""

import asyncio
import inspect
import json
import time
import traceback
from dataclasses import dataclass
from typing import Callable

# What a check waits for, it waits for this long: guests may run in software emulation.
WAIT_SECONDS = 120
# Of a request, and of a command in a sandbox, in seconds.
REQUEST_TIMEOUT = 240
COMMAND_TIMEOUT = 240
# Lives longer than a run.
SANDBOX_TIMEOUT = 3600


@dataclass
class Check:
    name: str
    group: str
    # The public calls that it exercises, as `coverage` names them.
    calls: tuple
    work: Callable


CHECKS: list[Check] = []


def check(*calls):
    """Registers a check of these calls."""
    def register(work):
        CHECKS.append(Check(work.__name__, work.__module__.rpartition(".")[2], calls, work))
        return work
    return register


async def of(value):
    """What the SDK returned, awaited if it is asynchronous."""
    return await value if inspect.isawaitable(value) else value


async def stream(t, place, pid, inputs):
    """Sends inputs in their order: the synchronous SDK takes an iterator of them, the asynchronous one gives a handle."""
    if not t.is_async:
        return place.stream_input(pid, iter(inputs))
    handle = place.stream_input(pid)
    for some in inputs:
        await handle.send(some)
    await handle.close()


async def collected(chunks):
    """All of a stream of bytes."""
    chunks = await of(chunks)
    if hasattr(chunks, "__aiter__"):
        return b"".join([bytes(chunk) async for chunk in chunks])
    return b"".join(bytes(chunk) for chunk in chunks)


async def raises(kind, value):
    """The error of this kind that a call must end with: of the call itself, a function, or of what it returned."""
    try:
        result = await of(value() if callable(value) else value)
    except kind as error:
        return error
    raise AssertionError("no %s was raised; the result was %r" % (kind.__name__, result))


class Context:
    """What a check works with: the SDK, and sandboxes of its own, which are killed when it ends: a host holds a dozen."""

    def __init__(self, e2b, is_async, transport, ca):
        self.e2b, self.is_async, self.transport, self.ca = e2b, is_async, transport, ca
        self.Sandbox = e2b.AsyncSandbox if is_async else e2b.Sandbox
        self._shared, self._created, self._kept = None, [], []

    async def sandbox(self):
        """One for all checks that leave it as it was, but for files of their own."""
        if self._shared is None:
            self._shared = self.keep(await self.create(envs={"FRUIT": "mango"}))
        return self._shared

    async def create(self, *arguments, sdk=None, **options):
        options = {"timeout": SANDBOX_TIMEOUT, "request_timeout": REQUEST_TIMEOUT, **options}
        sandbox = await of((sdk or self.Sandbox).create(*arguments, **options))
        return self.adopt(sandbox)

    def adopt(self, sandbox):
        """Has a sandbox killed when the check ends."""
        self._created.append(sandbox)
        return sandbox

    def keep(self, sandbox):
        """Has it killed at the end of the run instead."""
        self._created.remove(sandbox)
        self._kept.append(sandbox)
        return sandbox

    async def sh(self, sandbox, command, **options):
        """What a command prints, without the last line's end."""
        result = await of(sandbox.commands.run(command, **{"timeout": COMMAND_TIMEOUT, **options}))
        return result.stdout.rstrip("\n")

    async def until(self, what, ask):
        """Asks until the answer is true, and returns it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = await of(ask())
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError("%s did not come within %d s; last: %r" % (what, WAIT_SECONDS, answer))
            if self.is_async:
                await asyncio.sleep(0.2)
            else:
                time.sleep(0.2)

    async def end_check(self):
        await self._kill_all(self._created)

    async def end(self):
        await self._kill_all(self._kept)

    async def _kill_all(self, sandboxes):
        while sandboxes:
            sandbox = sandboxes.pop()
            try:
                await of(sandbox.kill())
            except Exception as error:  # a check that failed may have left it in any state
                report(event="note", text="%s was not killed: %s" % (sandbox.sandbox_id, error))


def report(**what):
    print(json.dumps(what), flush=True)


async def run(context, groups, text, absent):
    """Runs the checks of these groups. Of those with a call in `absent`, which this version does not have, none."""
    try:
        for one in CHECKS:
            if one.group not in groups or text not in one.name:
                continue
            without = [call for call in one.calls if call in absent]
            if without:
                report(event="check", check=one.name, calls=without, result="absent")
                continue
            await run_one(context, one)
    finally:
        await context.end()


async def run_one(context, one):
    began = time.monotonic()
    result, detail = "passed", ""
    try:
        await one.work(context)
    except Exception as error:
        result, detail = "failed", "%s: %s" % (type(error).__name__, error)
        report(event="note", text=traceback.format_exc())
    report(event="check", check=one.name, calls=list(one.calls), result=result, detail=detail[:2000],
           seconds=round(time.monotonic() - began, 2))
    await context.end_check()


def drive(work, is_async):
    if is_async:
        return asyncio.run(work)
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("A synchronous call of the SDK suspended")
