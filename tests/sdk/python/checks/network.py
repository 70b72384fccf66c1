"""What a sandbox may reach, and who may reach it."""

import urllib.error

from e2b import ALL_TRAFFIC, SandboxException

from suite import check, of, raises
from web import fetch

# Refused at once, not after a time: that is what a policy does.
TRY = "timeout 60 bash -c 'exec 3<>/dev/tcp/198.51.100.7/22'; echo $?"


@check("Sandbox.create(allow_internet_access)")
async def a_sandbox_without_internet_reaches_nothing(t):
    sandbox = await t.create(allow_internet_access=False)

    assert await t.sh(sandbox, TRY) == "1"
    assert (await of(sandbox.get_info())).allow_internet_access is False


@check("Sandbox.create(network)")
async def a_policy_is_shown_as_it_was_given(t):
    sandbox = await t.create(network={"allow_out": ["192.0.2.0/24", "*.example.com"], "deny_out": [ALL_TRAFFIC]})

    network = (await of(sandbox.get_info())).network

    assert sorted(network["allow_out"]) == ["*.example.com", "192.0.2.0/24"], network
    assert network["deny_out"] == [ALL_TRAFFIC], network
    assert await t.sh(sandbox, TRY) == "1"


@check("Sandbox.create(network)")
async def a_name_that_is_allowed_needs_a_denied_rest(t):
    await raises(SandboxException, lambda: t.create(network={"allow_out": ["example.com"]}))


@check("Sandbox.update_network")
async def a_new_policy_replaces_the_old_one(t):
    sandbox = await t.create()

    await of(sandbox.update_network({"deny_out": ["198.51.100.0/24"]}))
    denied = await of(sandbox.get_info())
    attempt = await t.sh(sandbox, TRY)
    await of(sandbox.update_network({"allow_out": ["192.0.2.1"]}))
    replaced = await of(sandbox.get_info())

    assert denied.network["deny_out"] == ["198.51.100.0/24"], denied
    assert attempt == "1"
    assert replaced.network["allow_out"] == ["192.0.2.1"] and not replaced.network.get("deny_out"), replaced


@check("Sandbox.create(network)")
async def a_sandbox_that_is_not_public_asks_for_its_token(t):
    sandbox = await t.create(network={"allow_public_traffic": False})
    server = "exec python3 -m http.server 8000 --bind 127.0.0.1 --directory /etc/skel"
    await of(sandbox.commands.run(server, background=True, timeout=0))
    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}

    def page():
        try:
            return fetch(t, sandbox, 8000, "/.profile", token)
        except urllib.error.HTTPError as error:
            assert error.code == 502, error
            return None

    refused = await raises(urllib.error.HTTPError, lambda: fetch(t, sandbox, 8000, "/.profile"))
    content = await t.until("the page", page)

    assert refused.code == 403, refused
    assert b"~/.profile" in content, content
