"""A port of a sandbox, the way that a browser or another program reaches it."""

import os
import urllib.request

from suite import REQUEST_TIMEOUT


def fetch(t, sandbox, port, path, headers=None):
    """What GET returns: by the port's own host name, or by headers where all sandboxes share one address."""
    headers = dict(headers or {})
    if t.transport == "hosts":
        url = "https://" + sandbox.get_host(port) + path
    else:
        url = os.environ["E2B_SANDBOX_URL"] + path
        headers |= {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=REQUEST_TIMEOUT) as answer:
        return answer.read()
