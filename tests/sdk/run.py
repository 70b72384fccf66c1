#!/usr/bin/python3
"""The official E2B SDKs against a real host: installs them, starts a host, has each SDK's checks run, and writes what came of
it to docs/e2b-matrix.md.

    tests/sdk/run.py [--only SDK] [--check TEXT]     SDK: python or javascript, or with a version: python-2.63.0

The host runs where guests run (scripts/host), its clients on this machine: they would be slow in the nested host, and are not
what is tested. With --only or --check the matrix is not written. SANDPIPER_PROGRAMS names the folder of the host's programs,
otherwise target/release.

    versions.toml ─▶ install ─▶ host ─▶ python/main.py, javascript/main.mjs ─▶ results ─▶ docs/e2b-matrix.md
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib

sys.dont_write_bytecode = True
import install  # noqa: E402
import matrix  # noqa: E402
import verdict  # noqa: E402
from host import Host  # noqa: E402

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# One SDK's run in one mode; some hundred checks of a few seconds each.
RUN_SECONDS = 900
LISTED = verdict.listed(HERE + "/not-there.toml")
GROUPS = ["sandboxes", "commands", "files", "terminals", "network", "copies", "others"]


def plan(sdk):
    """What is run of an SDK: (transport, mode, groups)."""
    modes = ["sync", "async"] if sdk["language"] == "python" else ["async"]
    if sdk["runs"] == "short":
        return [("headers", modes[0], GROUPS)]
    groups = GROUPS + ["interpreter"]
    runs = [("headers", modes[0], groups + ["repositories"])]
    runs += [("headers", mode, groups) for mode in modes[1:]]
    # What reaches a sandbox; the calls of the API are the same bytes either way.
    inside = ["commands", "files", "terminals", "interpreter"]
    return runs + [("hosts", mode, inside + ["sandboxes"] * (mode == "async")) for mode in modes]


def main():
    # Ended by its starter, it ends its host too.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="")
    options.add_argument("--check", default="")
    options = options.parse_args()
    with open(HERE + "/versions.toml", "rb") as file:
        sdks = [sdk for sdk in tomllib.load(file)["sdk"] if name_of(sdk).startswith(options.only)]
    if not sdks:
        sys.exit("error: versions.toml has no SDK whose name begins with %r" % options.only)
    for language in ("python", "javascript"):
        if lacking := install.missing(language):
            print("SKIPPED: the E2B SDKs for %s: this machine does not have %s" % (language, lacking))
            sdks = [sdk for sdk in sdks if sdk["language"] != language]
    for sdk in sdks:
        sdk["folder"] = install.ensure(sdk)
    results = []
    for transport in ("headers", "hosts"):
        if any(way == transport for sdk in sdks for way, _, _ in plan(sdk)):
            with Host(ROOT, transport) as host:
                run_all(host, sdks, options.check, results)
    if not (options.only or options.check):
        matrix.write(ROOT + "/docs/e2b-matrix.md", sdks, results)
    passed = sum(result["verdict"] == "passed" for result in results)
    failed = [result for result in results if result["verdict"] == "failed"]
    for result in failed:
        print("FAILED: %s: %s" % (title(result), result["detail"]))
    if not passed:
        print("error: no check passed")
    # The line that scripts/test counts.
    print("test result: %s. %d passed; %d failed; 0 ignored" % ("FAILED" if failed else "ok", passed, len(failed)))
    return 1 if failed or not passed else 0


def name_of(sdk):
    return "%s-%s" % (sdk["language"], sdk["version"])


def run_all(host, sdks, text, results):
    # One client of each language at a time: guests are slow, and the machine is not large.
    lanes = [[sdk for sdk in sdks if sdk["language"] == language] for language in ("python", "javascript")]
    threads = [threading.Thread(target=lane, args=(host, some, text, results), daemon=True) for some in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lane(host, sdks, text, results):
    for sdk in sdks:
        for transport, mode, groups in plan(sdk):
            if transport != host.transport:
                continue
            if "interpreter" in groups and "interpreter" not in sdk:
                groups = [group for group in groups if group != "interpreter"]
            began = time.monotonic()
            about = {"language": sdk["language"], "version": sdk["version"], "transport": transport, "mode": mode}
            results += run(host, sdk, about, groups, text)
            print("sdk %s %s %s: %.0f s" % (name_of(sdk), transport, mode, time.monotonic() - began), flush=True)


def run(host, sdk, about, groups, text):
    """Runs an SDK's checks in one mode; their results, and one that failed if the program did not come to its end."""
    argv = [*host.command(install.program(sdk, HERE)), about["mode"], about["transport"], ",".join(groups), text]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", env=install.environment(sdk) | host.environment())
    timer = threading.Timer(RUN_SECONDS, process.kill)
    timer.start()
    results, others, ended = [], [], False
    try:
        for line in process.stdout:
            event = parsed(line)
            kind = event and event.pop("event", None)
            if kind == "check":
                results.append(result_of(about | event))
            elif kind == "unchecked":
                results.append(result_of(about | event | {"check": "every_public_call_is_checked", "result": "failed",
                                                          "detail": "no check names %s" % event["calls"][0]}))
            elif kind == "end":
                ended = True
            else:
                others.append(event["text"] if event else line.rstrip("\n"))
        process.wait()
    finally:
        timer.cancel()
    if not ended:
        results.append(result_of(about | {"check": "the_run_ends", "calls": [], "result": "failed",
                                          "detail": "it ended early, with status %s" % process.returncode}))
    if others:
        print("\n".join(others), flush=True)
    return results


def parsed(line):
    try:
        event = json.loads(line)
        return event if isinstance(event, dict) and "event" in event else None
    except ValueError:
        return None


def result_of(result):
    """The result with its verdict, printed as the end-to-end tests print theirs."""
    result |= verdict.of(result, LISTED)
    shown = {"passed": "ok", "failed": "FAILED"}.get(result["verdict"], result["verdict"])
    print("test %s ... %s (%.1f s)" % (title(result), shown, result.get("seconds", 0)), flush=True)
    if result["verdict"] == "failed":
        print("    " + result["detail"], flush=True)
    return result


def title(result):
    return "sdk::%s-%s::%s::%s::%s" % tuple(result[part] for part in ("language", "version", "transport", "mode", "check"))


if __name__ == "__main__":
    sys.exit(main())
