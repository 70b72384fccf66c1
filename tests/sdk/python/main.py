"""Runs the checks of the installed SDK against the host that the environment names (E2B_API_KEY, and E2B_API_URL with
E2B_SANDBOX_URL, or E2B_DOMAIN), and prints a line of JSON for each.

    main.py MODE TRANSPORT GROUP,... [TEXT]      MODE: sync or async; TRANSPORT: headers or hosts; TEXT: in a check's name
"""

import importlib
import os
import sys

import e2b

import coverage
import suite

ALL = ["sandboxes", "commands", "files", "terminals", "repositories", "network", "copies", "interpreter", "others", "templates"]


def main(mode, transport, groups, text=""):
    is_async = mode == "async"
    for name in ALL:
        importlib.import_module("checks." + name)
    public = coverage.public(e2b, is_async)
    checked = {call for one in suite.CHECKS for call in one.calls}
    for call in sorted(public - checked - coverage.LOCAL.keys()):
        suite.report(event="unchecked", calls=[call])
    absent = {call for call in checked if not coverage.has(e2b, is_async, call)}
    context = suite.Context(e2b, is_async, transport, os.environ.get("SSL_CERT_FILE"))
    suite.drive(suite.run(context, groups.split(","), text, absent), is_async)
    suite.report(event="end")


if __name__ == "__main__":
    main(*sys.argv[1:])
