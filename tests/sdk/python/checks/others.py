"""Calls outside of `Sandbox`: one of each kind, to see whether there is a host for them."""

import e2b

from suite import REQUEST_TIMEOUT, check, of


def sdk(t, name):
    return getattr(e2b, "Async" + name if t.is_async else name)


@check("Template.exists")
async def a_template_is_found_by_its_name(t):
    assert await of(sdk(t, "Template").exists("base")) is True
    assert await of(sdk(t, "Template").exists("no-such-template")) is False


@check("Template.build")
async def a_template_is_built(t):
    template = e2b.Template().from_template("base").run_cmd("touch /built")

    await of(sdk(t, "Template").build(template, "built-by-a-check", request_timeout=REQUEST_TIMEOUT))
    sandbox = await t.create("built-by-a-check")

    assert await of(sandbox.files.exists("/built"))


@check("Volume.create")
async def a_volume_is_made(t):
    volume = await of(sdk(t, "Volume").create("made-by-a-check"))

    await of(volume.write_file("/note", "kept"))

    assert await of(volume.read_file("/note")) == "kept"


@check("Secret.create")
async def a_secret_is_made(t):
    secret = await of(sdk(t, "Secret").create("MADE_BY_A_CHECK", "value"))

    assert secret.name == "MADE_BY_A_CHECK"


@check("Sandbox.create(mcp)")
async def a_sandbox_starts_tool_servers(t):
    sandbox = await t.create(mcp={"time": {}})

    assert await of(sandbox.get_mcp_token())
