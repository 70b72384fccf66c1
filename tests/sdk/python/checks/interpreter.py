"""The code interpreter's SDK. Its server is part of E2B's own templates and not of the base template: what it says to its port
is checked against `guest/interpreter.py`, put there by the check."""

import os

import e2b_code_interpreter

from suite import check, of

SERVER = os.path.join(os.path.dirname(__file__), "../../guest/interpreter.py")
_SANDBOX = []


@check("Interpreter.create", "Interpreter.commands", "Interpreter.files")
async def its_sandbox_is_a_sandbox(t):
    sandbox = await t.create("base", sdk=sdk(t))

    await of(sandbox.files.write("note", "kept"))

    assert await t.sh(sandbox, "cat note") == "kept"


@check("Interpreter.run_code")
async def the_template_runs_code(t):
    sandbox = await t.create("base", sdk=sdk(t))

    assert (await of(sandbox.run_code("6 * 7"))).text == "42"


@check("Interpreter.run_code(transport)")
async def code_runs_and_its_output_streams(t):
    sandbox = await interpreter(t)
    lines = []

    execution = await of(sandbox.run_code("print('some text'); 6 * 7", on_stdout=lambda message: lines.append(message.line)))

    assert execution.text == "42", execution
    assert "".join(lines) == "some text\n", lines


@check("Interpreter.run_code(transport)")
async def an_error_of_the_code_is_no_error_of_the_call(t):
    sandbox = await interpreter(t)

    execution = await of(sandbox.run_code("1 / 0"))

    assert execution.error.name == "ZeroDivisionError", execution


@check("Interpreter.create_code_context(transport)", "Interpreter.list_code_contexts(transport)",
       "Interpreter.restart_code_context(transport)", "Interpreter.remove_code_context(transport)")
async def contexts_keep_their_variables_apart(t):
    sandbox = await interpreter(t)

    context = await of(sandbox.create_code_context(cwd="/tmp"))
    await of(sandbox.run_code("number = 5", context=context))
    kept = await of(sandbox.run_code("number", context=context))
    await of(sandbox.restart_code_context(context))
    gone = await of(sandbox.run_code("number", context=context))
    listed = [one.id for one in await of(sandbox.list_code_contexts())]
    await of(sandbox.remove_code_context(context))

    assert kept.text == "5", kept
    assert gone.error.name == "NameError", gone
    assert context.id in listed, listed
    assert context.id not in [one.id for one in await of(sandbox.list_code_contexts())]


def sdk(t):
    return e2b_code_interpreter.AsyncSandbox if t.is_async else e2b_code_interpreter.Sandbox


async def interpreter(t):
    """A sandbox in which the server answers."""
    if not _SANDBOX:
        sandbox = await t.create("base", sdk=sdk(t))
        with open(SERVER) as file:
            await of(sandbox.files.write("interpreter.py", file.read()))
        await of(sandbox.commands.run("exec python3 interpreter.py", background=True, timeout=0))

        async def answers():
            try:
                return (await of(sandbox.run_code("1"))).text == "1"
            except Exception as error:
                # Its port is not open yet.
                if "not open" in str(error) or "502" in str(error):
                    return False
                raise
        await t.until("the interpreter", answers)
        _SANDBOX.append(t.keep(sandbox))
    return _SANDBOX[0]
