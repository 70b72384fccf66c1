"""The code interpreter's SDK, on the example that is made for it: docs/examples/code-interpreter, under the name that the SDK asks
for where its user names no template."""

import base64

import e2b_code_interpreter

from suite import check, of

_SANDBOX = []


@check("Interpreter.create", "Interpreter.commands", "Interpreter.files")
async def its_sandbox_is_a_sandbox(t):
    sandbox = await interpreter(t)

    await of(sandbox.files.write("note", "kept"))

    assert await t.sh(sandbox, "cat note") == "kept"


@check("Interpreter.run_code")
async def code_runs_and_its_output_streams(t):
    sandbox = await interpreter(t)
    lines = []

    execution = await of(sandbox.run_code("print('some text'); 6 * 7", on_stdout=lambda message: lines.append(message.line)))

    assert execution.text == "42", execution
    assert "".join(lines) == "some text\n", lines


@check("Interpreter.run_code")
async def an_error_of_the_code_is_no_error_of_the_call(t):
    sandbox = await interpreter(t)

    execution = await of(sandbox.run_code("1 / 0"))

    assert execution.error.name == "ZeroDivisionError", execution


@check("Interpreter.run_code")
async def a_chart_is_a_picture_and_data(t):
    sandbox = await interpreter(t)

    execution = await of(sandbox.run_code(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='growth')\nplt.title('Sales')\n"
        "plt.xlabel('Time (s)')\nplt.show()"))

    result, = (result for result in execution.results if result.png)
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    assert (result.chart.type.value, result.chart.title, result.chart.x_unit) == ("line", "Sales", "s"), execution
    assert [(line.label, line.points) for line in result.chart.elements] == [("growth", [(1.0, 3.0), (2.0, 4.0)])]


@check("Interpreter.create_code_context", "Interpreter.list_code_contexts",
       "Interpreter.restart_code_context", "Interpreter.remove_code_context")
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
    if not _SANDBOX:
        _SANDBOX.append(t.keep(await t.create(sdk=sdk(t))))
    return _SANDBOX[0]
