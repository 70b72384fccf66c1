"""Templates: each is built, which takes a while."""

import pathlib
import secrets
import tempfile

import e2b

from suite import REQUEST_TIMEOUT, check, of

SLOW = {"request_timeout": REQUEST_TIMEOUT}
# Of what a build and a sandbox of it may have: guests may run in software emulation.
SIZE = {"cpu_count": 1, "memory_mb": 256}


def sdk(t, name):
    return getattr(e2b, "Async" + name if t.is_async else name)


@check("Template.exists")
async def a_template_is_found_by_its_name(t):
    assert await of(sdk(t, "Template").exists("base")) is True
    assert await of(sdk(t, "Template").exists("no-such-template")) is False


@check("Template.build", "Template.build_in_background", "Template.get_build_status", "Template.assign_tags", "Template.get_tags",
       "Template.remove_tags")
async def a_template_is_built_and_tagged(t):
    Template = sdk(t, "Template")
    name, said = "of-a-check-%s" % secrets.token_hex(8), []

    def described(folder):
        return Template(file_context_path=folder).from_template("small")

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "greeting").write_text("hello\n")
        template = described(folder).copy("greeting", "/srv/").set_envs({"FRUIT": "mango"}) \
            .run_cmd("cat /srv/greeting > made; echo $FRUIT >> made").set_start_cmd("sleep 1000", "test -s made")
        log = {"on_build_logs": lambda entry: said.append(entry.message)}
        built = await of(Template.build(template, name + ":v1", **log, **SIZE, **SLOW))

    assert any("cat /srv/greeting" in line for line in said), said
    assert await of(Template.exists(name, **SLOW)) is True
    sandbox = await t.create(name + ":v1")
    assert await t.sh(sandbox, "pwd; id -un; cat made; echo $FRUIT") == "/home/user\nuser\nhello\nmango\nmango"
    assert await t.sh(sandbox, "ps -o args | grep -q '[s]leep 1000' && echo up") == "up"
    await of(sandbox.kill(**SLOW))

    # One that fails is told of, and leaves the other as it is.
    begun = await of(Template.build_in_background(described(".").run_cmd("exit 7"), name, **SIZE, **SLOW))

    async def ended():
        status = await of(Template.get_build_status(begun, **SLOW))
        return status if status.status.value in ("ready", "error") else None

    status = await t.until("the build's end", ended)
    assert status.status.value == "error" and "7" in status.reason.message, status
    assert (await of(Template.assign_tags(name + ":v1", ["stable"], **SLOW))).build_id == built.build_id
    assert sorted(tag.tag for tag in await of(Template.get_tags(name, **SLOW))) == ["stable", "v1"]
    await of(Template.remove_tags(name, "stable", **SLOW))
    assert [tag.tag for tag in await of(Template.get_tags(name, **SLOW))] == ["v1"]
