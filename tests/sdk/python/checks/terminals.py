"""Pseudo-terminals."""

from e2b import CommandExitException, PtySize

from suite import COMMAND_TIMEOUT, check, of, raises, stream


@check("pty.create", "pty.send_stdin")
async def a_terminal_runs_a_shell(t):
    terminal = await open_terminal(t, envs={"TREE": "oak"}, cwd="/tmp")

    await terminal.type("echo $TREE in $(pwd), $(tput cols) by $(tput lines); exit\n")

    assert "oak in /tmp, 80 by 24" in await terminal.rest(), terminal.text()


@check("pty.resize")
async def a_terminal_is_resized(t):
    terminal = await open_terminal(t)

    await of(terminal.sandbox.pty.resize(terminal.handle.pid, PtySize(rows=30, cols=100)))
    await terminal.type("stty size; exit\n")

    assert "30 100" in await terminal.rest(), terminal.text()


@check("pty.connect")
async def a_terminal_is_connected_to(t):
    first = await open_terminal(t)

    second = await open_terminal(t, pid=first.handle.pid)
    await second.type("echo $((40 + 2)); exit\n")

    assert "42" in await second.rest(), second.text()


@check("pty.kill")
async def a_terminal_is_killed_once(t):
    terminal = await open_terminal(t)

    killed = await of(terminal.sandbox.pty.kill(terminal.handle.pid))
    await raises(CommandExitException, terminal.handle.wait)
    again = await of(terminal.sandbox.pty.kill(terminal.handle.pid))

    assert (killed, again) == (True, False)


@check("pty.stream_input")
async def input_is_streamed_to_a_terminal(t):
    terminal = await open_terminal(t)
    keys = [b"echo one", b"-two; ", b"exit\n"]

    await stream(t, terminal.sandbox.pty, terminal.handle.pid, keys)

    assert "one-two\r\n" in await terminal.rest(), terminal.text()


class Terminal:
    def __init__(self, sandbox):
        self.sandbox, self.handle, self.output = sandbox, None, []

    async def type(self, keys):
        await of(self.sandbox.pty.send_stdin(self.handle.pid, keys.encode()))

    async def rest(self):
        """All that it showed, once its shell has ended."""
        # The asynchronous half was told in `create` whom to give the output to.
        asynchronous = not hasattr(self.handle, "__iter__")
        await of(self.handle.wait() if asynchronous else self.handle.wait(on_pty=self.output.append))
        return self.text()

    def text(self):
        return b"".join(self.output).decode(errors="replace")


async def open_terminal(t, pid=None, **options):
    """A new terminal, or one more connection to that of process `pid`."""
    terminal = Terminal(await t.sandbox())
    options["timeout"] = COMMAND_TIMEOUT
    if t.is_async:
        options["on_data"] = terminal.output.append
    pty = terminal.sandbox.pty
    terminal.handle = await of(pty.create(PtySize(rows=24, cols=80), **options) if pid is None else pty.connect(pid, **options))
    return terminal
