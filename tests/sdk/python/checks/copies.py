"""Snapshots, and forks: sandboxes that begin where another one was."""

from e2b import NotFoundException

from suite import REQUEST_TIMEOUT, SANDBOX_TIMEOUT, check, of, raises


@check("Sandbox.create_snapshot", "Sandbox.list_snapshots", "Sandbox.delete_snapshot")
async def a_sandbox_begins_at_a_snapshot(t):
    sandbox = await t.create()
    await of(sandbox.files.write("state", "before"))

    snapshot = await of(sandbox.create_snapshot(request_timeout=REQUEST_TIMEOUT))
    await of(sandbox.files.write("state", "after"))
    listed = await of(sandbox.list_snapshots().next_items())
    copy = await t.create(snapshot.snapshot_id)
    deleted = await of(t.Sandbox.delete_snapshot(snapshot.snapshot_id))
    again = await of(t.Sandbox.delete_snapshot(snapshot.snapshot_id))

    assert [info.snapshot_id for info in listed] == [snapshot.snapshot_id], listed
    assert await of(copy.files.read("state")) == "before"
    assert await of(sandbox.files.read("state")) == "after"
    assert (deleted, again) == (True, False)


@check("Sandbox.create_snapshot")
async def no_snapshot_is_taken_of_what_is_not_there(t):
    await raises(NotFoundException, lambda: t.Sandbox.create_snapshot("i0nosuchsandbox0"))


@check("Sandbox.fork")
async def forks_go_on_from_one_moment(t):
    sandbox = await t.create()
    handle = await of(sandbox.commands.run("sleep 604", background=True))
    await of(sandbox.files.write("state", "shared"))

    forks = await of(sandbox.fork(count=2, timeout=SANDBOX_TIMEOUT, request_timeout=REQUEST_TIMEOUT))
    for fork in forks:
        assert isinstance(fork, t.Sandbox), fork
        t.adopt(fork)
    await of(forks[0].files.write("state", "of the first"))

    assert len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 3
    assert await of(forks[1].files.read("state")) == "shared"
    assert await of(sandbox.files.read("state")) == "shared"
    assert handle.pid in [process.pid for process in await of(forks[1].commands.list())]
