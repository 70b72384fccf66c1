#!/usr/bin/python3
"""The official E2B SDKs against a real host: installs them, starts a host, has each SDK's checks run, and writes what came of
it to docs/e2b-matrix.md.

    tests/sdk/run.py [--newest] [--only SDK] [--check TEXT]     SDK: python or javascript, or with a version: python-2.63.0

The host runs where guests run (scripts/host), its clients on this machine: they would be slow in the nested host, and are not
what is tested. With --newest it is the newest SDK of each language, and not in every way; a line says what is left out. The
matrix comes of all of them and nothing less. SANDPIPER_PROGRAMS names the folder of the host's programs, otherwise
target/release.

    versions.toml ─▶ install ─▶ host ─▶ python/main.py, javascript/main.mjs ─▶ results ─▶ docs/e2b-matrix.md
"""

import argparse
import json
import os
import queue
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
# A run has up to four sandboxes at a time, and a host holds a dozen.
AT_ONCE = 3
LISTED = verdict.listed(HERE + "/not-there.toml")
# A run of their own: a build takes as much memory as a run's sandboxes, and waits for it while they have it.
TEMPLATES = ["templates"]
GROUPS = ["sandboxes", "commands", "files", "terminals", "network", "copies", "interpreter", "others"]


def plan(sdk):
    """What is run of an SDK: (transport, mode, groups)."""
    modes = ["sync", "async"] if sdk["language"] == "python" else ["async"]
    # Those of git are commands of the SDK's own making: once is enough.
    runs = [("headers", modes[0], GROUPS + ["repositories"])]
    runs += [("headers", mode, GROUPS) for mode in modes[1:]]
    runs += [("headers", modes[0], TEMPLATES)]
    # What reaches a sandbox; the calls of the API are the same bytes either way.
    inside = ["commands", "files", "terminals", "interpreter"]
    runs += [("hosts", mode, inside + ["sandboxes"] * (mode == "async")) for mode in modes]
    return [(way, mode, [group for group in groups if group != "interpreter" or sdk.get("interpreter_by", way) == way])
            for way, mode, groups in runs]


def of_newest(sdk, sdks):
    """The part of its plan that --newest has: what differs most for the least time."""
    newest = max((one for one in sdks if one["language"] == sdk["language"]), key=lambda one: [int(n) for n in one["version"].split(".")])
    if sdk is not newest:
        return []
    return [run for run in plan(sdk) if run[1] == "sync" or sdk["language"] == "javascript" and run[0] == "headers"]


def main():
    # Ended by its starter, it ends its host too; also in the background, where a shell has SIGINT ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--newest", action="store_true")
    options.add_argument("--only", default="")
    options.add_argument("--check", default="")
    options = options.parse_args()
    with open(HERE + "/versions.toml", "rb") as file:
        listed = tomllib.load(file)["sdk"]
    sdks = [sdk for sdk in listed if name_of(sdk).startswith(options.only)]
    if not sdks:
        sys.exit("error: versions.toml has no SDK whose name begins with %r" % options.only)
    for language in ("python", "javascript"):
        if lacking := install.missing(language):
            print("SKIPPED: the E2B SDKs for %s: this machine does not have %s" % (language, lacking))
            sdks = [sdk for sdk in sdks if sdk["language"] != language]
    for sdk in sdks:
        sdk["runs"] = of_newest(sdk, listed) if options.newest else plan(sdk)
        if sdk["runs"]:
            sdk["folder"] = install.ensure(sdk)
    results = []
    for transport in ("headers", "hosts"):
        groups = [groups for sdk in sdks for way, _, groups in sdk["runs"] if way == transport]
        if groups:
            with Host(ROOT, transport, any("interpreter" in names for names in groups)) as host:
                run_all(host, sdks, options.check, results)
    left_out = [" ".join((name_of(sdk), title_of(run))) for sdk in sdks for run in plan(sdk) if run not in sdk["runs"]]
    if left_out:
        print("LEFT OUT, `scripts/test sdks` runs them: " + ", ".join(left_out))
    if sdks == listed and not (options.newest or options.check):
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


def title_of(run):
    transport, mode, groups = run
    return " ".join([transport, mode] + TEMPLATES * (groups == TEMPLATES))


def run_all(host, sdks, text, results):
    runs = [(sdk, one) for sdk in sdks for one in sdk["runs"] if one[0] == host.transport]
    run_at_once(AT_ONCE, host, [run for run in runs if run[1][2] != TEMPLATES], text, results)
    run_at_once(1, host, [run for run in runs if run[1][2] == TEMPLATES], text, results)


def run_at_once(number, host, runs, text, results):
    waiting = queue.SimpleQueue()
    for one in runs:
        waiting.put(one)
    lanes = [threading.Thread(target=lane, args=(host, waiting, text, results), daemon=True) for _ in range(number)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()


def lane(host, waiting, text, results):
    while True:
        try:
            sdk, (transport, mode, groups) = waiting.get_nowait()
        except queue.Empty:
            return
        began = time.monotonic()
        about = {"language": sdk["language"], "version": sdk["version"], "transport": transport, "mode": mode}
        results += run(host, sdk, about, groups, text)
        print("sdk %s %s: %.0f s" % (name_of(sdk), title_of((transport, mode, groups)), time.monotonic() - began), flush=True)


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
