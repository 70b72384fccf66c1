"""Commands: their output, their input, and their lives."""

from importlib.metadata import version

from e2b import CommandExitException

from suite import COMMAND_TIMEOUT, check, of, raises, stream


@check("commands.run")
async def run_returns_output_and_status(t):
    sandbox = await t.sandbox()

    result = await of(sandbox.commands.run("echo out; echo err >&2"))

    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0), result


@check("commands.run")
async def run_raises_for_a_status_other_than_zero(t):
    sandbox = await t.sandbox()

    error = await raises(CommandExitException, lambda: sandbox.commands.run("echo why >&2; exit 3"))

    assert (error.exit_code, error.stderr) == (3, "why\n"), error


@check("commands.run")
async def run_takes_environment_folder_and_user(t):
    sandbox = await t.sandbox()

    mine = await t.sh(sandbox, "id -un; pwd; echo $FRUIT $PLANT")
    other = await t.sh(sandbox, "id -un; pwd; echo $FRUIT $PLANT", user="root", cwd="/tmp", envs={"PLANT": "fern"})

    assert mine.split() == ["user", "/home/user", "mango"], mine
    assert other.split() == ["root", "/tmp", "mango", "fern"], other


@check("commands.run")
async def run_gives_output_as_it_comes(t):
    sandbox = await t.sandbox()
    out, err = [], []

    await of(sandbox.commands.run("for n in 1 2 3; do echo o$n; echo e$n >&2; done", on_stdout=out.append, on_stderr=err.append))

    assert ("".join(out), "".join(err)) == ("o1\no2\no3\n", "e1\ne2\ne3\n"), (out, err)


@check("commands.run")
async def run_returns_long_output_whole(t):
    sandbox = await t.sandbox()

    output = await t.sh(sandbox, "seq -f 'line %.0f' 1 60000")

    assert output == "\n".join("line %d" % n for n in range(1, 60001))


@check("commands.run")
async def run_ends_at_its_timeout(t):
    sandbox = await t.sandbox()

    error = await raises(Exception, lambda: sandbox.commands.run("sleep 600", timeout=2))

    # 2.20 waits as long for a part of the response as it lets the command run: its HTTP client may give up first, and its
    # error comes through as it is.
    allowed = ("TimeoutException", "ReadTimeout") if version("e2b").startswith("2.20.") else ("TimeoutException",)
    assert type(error).__name__ in allowed, repr(error)


@check("commands.run", "CommandHandle.wait")
async def a_background_command_is_waited_for(t):
    sandbox = await t.sandbox()

    handle = await of(sandbox.commands.run("echo begun; sleep 0.2; echo done", background=True, timeout=COMMAND_TIMEOUT))
    result = await of(handle.wait())

    assert handle.pid > 0
    assert result.stdout == "begun\ndone\n", result


@check("commands.list", "commands.kill")
async def a_listed_command_is_killed_once(t):
    sandbox = await t.sandbox()
    handle = await of(sandbox.commands.run("sleep 601", background=True))

    listed = [process for process in await of(sandbox.commands.list()) if process.pid == handle.pid]
    first = await of(sandbox.commands.kill(handle.pid))
    await raises(CommandExitException, handle.wait)
    second = await of(sandbox.commands.kill(handle.pid))

    assert listed and "sleep 601" in listed[0].args, listed
    assert (first, second) == (True, False)


@check("CommandHandle.kill")
async def a_handle_kills_its_command(t):
    sandbox = await t.sandbox()
    handle = await of(sandbox.commands.run("sleep 602", background=True))

    killed = await of(handle.kill())

    await raises(CommandExitException, handle.wait)
    assert killed is True


@check("commands.connect", "CommandHandle.disconnect", "commands.send_stdin")
async def a_command_outlives_its_connection(t):
    sandbox = await t.sandbox()
    first = await of(sandbox.commands.run("read line; echo got $line", background=True, stdin=True, timeout=COMMAND_TIMEOUT))

    await of(first.disconnect())
    second = await of(sandbox.commands.connect(first.pid, timeout=COMMAND_TIMEOUT))
    await of(sandbox.commands.send_stdin(first.pid, "hello\n"))
    result = await of(second.wait())

    assert result.stdout == "got hello\n", result


@check("commands.close_stdin")
async def closing_its_input_ends_a_reader(t):
    sandbox = await t.sandbox()
    handle = await of(sandbox.commands.run("cat", background=True, stdin=True, timeout=COMMAND_TIMEOUT))

    await of(sandbox.commands.send_stdin(handle.pid, "one\n"))
    await of(sandbox.commands.close_stdin(handle.pid))
    result = await of(handle.wait())

    assert result.stdout == "one\n", result


@check("CommandHandle.send_stdin", "CommandHandle.close_stdin")
async def a_handle_feeds_its_command(t):
    sandbox = await t.sandbox()
    handle = await of(sandbox.commands.run("cat", background=True, stdin=True, timeout=COMMAND_TIMEOUT))

    await of(handle.send_stdin("two\n"))
    await of(handle.close_stdin())
    result = await of(handle.wait())

    assert result.stdout == "two\n", result


@check("commands.stream_input")
async def input_is_streamed(t):
    sandbox = await t.sandbox()
    handle = await of(sandbox.commands.run("head -n 3", background=True, stdin=True, timeout=COMMAND_TIMEOUT))
    lines = ["a\n", "b\n", "c\n"]

    await stream(t, sandbox.commands, handle.pid, lines)
    result = await of(handle.wait())

    assert result.stdout == "a\nb\nc\n", result
