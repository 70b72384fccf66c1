"""Calls outside of `Sandbox`: one of each kind, to see whether there is a host for them."""

import secrets

import e2b

from suite import REQUEST_TIMEOUT, check, collected, of, raises


def sdk(t, name):
    return getattr(e2b, "Async" + name if t.is_async else name)


async def made(t):
    """A volume with a name of its own: other runs are under way on the same host."""
    return await of(sdk(t, "Volume").create("of-a-check-%s" % secrets.token_hex(8), request_timeout=REQUEST_TIMEOUT))


@check("Volume.create", "Volume.connect", "Volume.list", "Volume.get_info", "Volume.destroy")
async def a_volume_is_made_found_and_destroyed(t):
    Volume = sdk(t, "Volume")
    volume = await made(t)

    assert (await of(Volume.get_info(volume.volume_id))).name == volume.name
    assert volume.volume_id in [listed.volume_id for listed in await of(Volume.list())]
    connected = await of(Volume.connect(volume.volume_id))
    assert connected.token

    assert await of(Volume.destroy(volume.volume_id, request_timeout=REQUEST_TIMEOUT)) is True
    assert await of(Volume.destroy(volume.volume_id, request_timeout=REQUEST_TIMEOUT)) is False
    await raises(e2b.NotFoundException, lambda: Volume.connect(volume.volume_id))


@check("Volume.write_file", "Volume.read_file", "Volume.make_dir", "Volume.exists", "Volume.update_metadata",
       "Volume.remove")
async def files_of_a_volume_are_written_and_read(t):
    volume = await made(t)
    slow = {"request_timeout": REQUEST_TIMEOUT}

    entry = await of(volume.write_file("/notes/first.txt", "kept", mode=0o600, **slow))
    assert (entry.path, entry.name, entry.size, entry.mode) == ("/notes/first.txt", "first.txt", 4, 0o600)
    assert await of(volume.read_file("/notes/first.txt", **slow)) == "kept"
    assert await collected(volume.read_file("/notes/first.txt", format="stream", **slow)) == b"kept"
    large = bytes(range(256)) * 40_000
    await of(volume.write_file("/large", large, **slow))
    assert bytes(await of(volume.read_file("/large", format="bytes", **slow))) == large

    await of(volume.make_dir("/a/b", force=True, **slow))
    await raises(e2b.NotFoundException, lambda: volume.make_dir("/c/d", **slow))
    assert sorted(entry.path for entry in await of(volume.list("/", **slow)) if entry.name != "lost+found") \
        == ["/a", "/large", "/notes"]
    assert "/a/b" in [entry.path for entry in await of(volume.list("/", depth=2, **slow))]
    changed = await of(volume.update_metadata("/large", uid=0, gid=0, mode=0o640, **slow))
    assert (changed.uid, changed.gid, changed.mode) == (0, 0, 0o640)
    await of(volume.remove("/notes", **slow))
    assert await of(volume.exists("/notes/first.txt", **slow)) is False
    await raises(e2b.NotFoundException, lambda: volume.read_file("/notes/first.txt", **slow))
    await of(sdk(t, "Volume").destroy(volume.volume_id, **slow))


@check("Sandbox.create(volume_mounts)")
async def what_a_sandbox_writes_into_a_volume_outlives_it(t):
    volume = await made(t)
    slow = {"request_timeout": REQUEST_TIMEOUT}
    sandbox = await t.create(volume_mounts={"/data": volume})

    await t.sh(sandbox, "echo kept > /data/note && sync")
    await raises(e2b.SandboxException, lambda: t.Sandbox.create(volume_mounts={"/data": volume.name}, **slow))
    await of(sandbox.kill(**slow))

    assert await of(volume.read_file("/note", **slow)) == "kept\n"
    second = await t.create(volume_mounts={"/data": volume.name})
    assert await t.sh(second, "cat /data/note") == "kept"
    await of(second.kill(**slow))
    await of(sdk(t, "Volume").destroy(volume.volume_id, **slow))


@check("Secret.create")
async def a_secret_is_made(t):
    secret = await of(sdk(t, "Secret").create("MADE_BY_A_CHECK", "value"))

    assert secret.name == "MADE_BY_A_CHECK"


@check("Sandbox.create(mcp)")
async def a_sandbox_starts_tool_servers(t):
    sandbox = await t.create(mcp={"time": {}})

    assert await of(sandbox.get_mcp_token())
