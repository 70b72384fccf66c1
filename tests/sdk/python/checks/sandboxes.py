"""The life of a sandbox: created, found, kept, paused, resumed, killed."""

import re
import urllib.error
import urllib.request

from e2b import AuthenticationException, NotFoundException, SandboxException, SandboxQuery, SandboxState

from suite import REQUEST_TIMEOUT, SANDBOX_TIMEOUT, check, of, raises
from web import fetch


@check("Sandbox.create", "Sandbox.get_info")
async def a_new_sandbox_is_as_it_was_asked_for(t):
    sandbox = await t.create("base", metadata={"who": "checks & balances"}, envs={"FRUIT": "quince"})

    info = await of(sandbox.get_info())
    by_id = await of(t.Sandbox.get_info(sandbox.sandbox_id))

    assert re.fullmatch("[a-z0-9]+", sandbox.sandbox_id), sandbox.sandbox_id
    assert (info.sandbox_id, info.state) == (sandbox.sandbox_id, SandboxState.RUNNING), info
    assert info.metadata == {"who": "checks & balances"}, info
    assert info.cpu_count >= 1 and info.memory_mb >= 128 and info.started_at < info.end_at, info
    assert by_id.started_at == info.started_at, by_id
    assert await t.sh(sandbox, "echo $FRUIT") == "quince"


@check("Sandbox.create")
async def creating_from_nothing_is_refused(t):
    error = await raises(SandboxException, lambda: t.Sandbox.create("no-such-template", request_timeout=REQUEST_TIMEOUT))

    assert "no-such-template" in str(error), error


@check("Sandbox.create")
async def a_wrong_key_is_refused(t):
    await raises(AuthenticationException, lambda: t.Sandbox.create(api_key="e2b_" + "0" * 40))


@check("Sandbox.list")
async def sandboxes_are_found_by_their_metadata(t):
    wanted = {"a b": "c&d=%e"}
    mine = await t.create(metadata=wanted)
    await t.sandbox()

    found = await of(t.Sandbox.list(query=SandboxQuery(metadata=wanted)).next_items())
    pages = t.Sandbox.list(limit=1)
    first = await of(pages.next_items())
    has_more = pages.has_next
    second = await of(pages.next_items())

    assert mine.sandbox_id in [info.sandbox_id for info in found], found
    assert all(info.metadata == wanted for info in found), found
    assert (len(first), has_more, len(second)) == (1, True, 1)
    assert first[0].sandbox_id != second[0].sandbox_id


@check("Sandbox.is_running", "Sandbox.kill")
async def a_killed_sandbox_runs_no_more(t):
    sandbox = await t.create()

    before = await of(sandbox.is_running())
    killed = await of(sandbox.kill())
    again = await of(t.Sandbox.kill(sandbox.sandbox_id))

    assert (before, killed, again) == (True, True, False)
    assert await of(sandbox.is_running()) is False
    await raises(NotFoundException, sandbox.get_info)


@check("Sandbox.set_timeout")
async def a_timeout_is_moved(t):
    sandbox = await t.create(timeout=SANDBOX_TIMEOUT)
    before = await of(sandbox.get_info())

    await of(sandbox.set_timeout(2 * SANDBOX_TIMEOUT))
    later = await of(sandbox.get_info())
    await of(t.Sandbox.set_timeout(sandbox.sandbox_id, 600))
    sooner = await of(sandbox.get_info())

    assert later.end_at > before.end_at > sooner.end_at, (before, later, sooner)


@check("Sandbox.connect")
async def a_running_sandbox_is_connected_to(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.write("for-the-next", "seen"))

    other = await of(t.Sandbox.connect(sandbox.sandbox_id, request_timeout=REQUEST_TIMEOUT))

    assert other.sandbox_id == sandbox.sandbox_id
    assert await of(other.files.read("for-the-next")) == "seen"
    await raises(NotFoundException, lambda: t.Sandbox.connect("i0nosuchsandbox0"))


@check("Sandbox.pause", "Sandbox.connect")
async def a_paused_sandbox_goes_on_where_it_was(t):
    sandbox = await t.create()
    handle = await of(sandbox.commands.run("sleep 603", background=True))

    paused = await of(sandbox.pause())
    again = await of(sandbox.pause())
    state = (await of(sandbox.get_info())).state
    running = await of(sandbox.is_running())
    resumed = await of(t.Sandbox.connect(sandbox.sandbox_id, timeout=SANDBOX_TIMEOUT, request_timeout=REQUEST_TIMEOUT))
    processes = [process.pid for process in await of(resumed.commands.list())]

    # Python 2.20 says nothing of either.
    assert (paused, again) in ((True, False), (None, None)), (paused, again)
    assert (state, running) == (SandboxState.PAUSED, False)
    assert handle.pid in processes, processes


@check("Sandbox.beta_pause")
async def the_former_name_of_pause_works(t):
    sandbox = await t.create()

    await of(sandbox.beta_pause())

    assert (await of(sandbox.get_info())).state == SandboxState.PAUSED


@check("Sandbox.beta_create")
async def the_former_name_of_create_works(t):
    options = {"timeout": SANDBOX_TIMEOUT, "auto_pause": True, "request_timeout": REQUEST_TIMEOUT}
    sandbox = t.adopt(await of(t.Sandbox.beta_create("base", **options)))

    assert await t.sh(sandbox, "echo here") == "here"


@check("Sandbox.create(lifecycle)", "Sandbox.set_timeout")
async def a_sandbox_pauses_at_its_timeout_and_wakes_for_a_request(t):
    sandbox = await t.create(lifecycle={"on_timeout": "pause", "auto_resume": True})

    # Now. One of a second would leave it a second when it wakes.
    await of(sandbox.set_timeout(0))

    async def is_paused():
        return (await of(sandbox.get_info())).state == SandboxState.PAUSED
    await t.until("the pause", is_paused)
    assert await t.sh(sandbox, "echo awake") == "awake"


@check("Sandbox.get_metrics")
async def what_it_uses_is_measured(t):
    sandbox = await t.sandbox()

    metrics = await t.until("a measurement", sandbox.get_metrics)

    last = metrics[-1]
    assert last.cpu_count >= 1 and 0 < last.mem_used < last.mem_total and 0 < last.disk_used < last.disk_total, last


@check("Sandbox.get_host")
async def a_port_is_reached_from_outside(t):
    sandbox = await t.create()
    await of(sandbox.files.write("site/index.html", "inside"))
    await of(sandbox.commands.run("exec python3 -m http.server 8000 --bind 127.0.0.1 --directory site", background=True, timeout=0))

    async def page():
        try:
            return fetch(t, sandbox, 8000, "/")
        except urllib.error.HTTPError as error:
            # Until the server listens.
            assert error.code == 502, error
            return None
    assert sandbox.get_host(8000).startswith("8000-%s." % sandbox.sandbox_id), sandbox.get_host(8000)
    assert await t.until("the page", page) == b"inside"


@check("Sandbox.upload_url", "Sandbox.download_url")
async def files_go_through_links(t):
    sandbox = await t.sandbox()
    content = b'--b\r\nContent-Disposition: form-data; name="file"; filename="linked.txt"\r\n\r\nby link\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}

    up = urllib.request.Request(sandbox.upload_url("linked.txt"), content, headers)
    with urllib.request.urlopen(up, timeout=REQUEST_TIMEOUT) as answer:
        assert answer.status == 200, answer.status
    with urllib.request.urlopen(sandbox.download_url("linked.txt", use_signature_expiration=600), timeout=REQUEST_TIMEOUT) as answer:
        assert answer.read() == b"by link"


@check("Sandbox.get_mcp_token")
async def the_token_of_a_tool_server_is_read(t):
    sandbox = await t.create()
    await of(sandbox.files.write("/etc/mcp-gateway/.token", "of the gateway", user="root"))

    assert await of(sandbox.get_mcp_token()) == "of the gateway"
