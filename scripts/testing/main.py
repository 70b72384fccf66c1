"""Every test: `scripts/test` has the help. Runs the steps of plan.py, and sums up what they came to.

    main.py [--quick | e2e | sdks] [FILTER]
"""

import json
import os
import re
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True
import plan  # noqa: E402
import steps  # noqa: E402
from outcome import Outcome  # noqa: E402

FUZZ_SECONDS = 10
SLOWEST = 25


def main(arguments):
    native = guests = True
    whole = True
    if arguments[:1] == ["--quick"]:
        guests = False
    elif arguments[:1] == ["e2e"]:
        native = whole = False
    only_sdks = arguments[:1] == ["sdks"]
    if only_sdks:
        native = guests = whole = False
    if not (native and guests):
        arguments = arguments[1:]
    text = arguments[0] if arguments else ""
    whole = whole and not text
    os.chdir(plan.ROOT)
    os.environ["PATH"] += ":%s/tools/bin" % plan.CACHE

    chosen = []
    if guests:
        chosen += plan.programs() + plan.end_to_end(text)
    if only_sdks:
        chosen += plan.programs() + plan.sdks()
    if whole:
        chosen += plan.checks()
    if native:
        chosen += plan.native(text)
    if whole and guests:
        chosen += plan.others() + plan.fuzzing(FUZZ_SECONDS)

    report = plan.TARGET + "/test-report"
    shutil.rmtree(report, ignore_errors=True)
    os.makedirs(report)
    began = time.monotonic()
    minutes = float(os.environ.get("SANDPIPER_MINUTES") or 0)
    results = steps.run_all(chosen, report, max(2, os.cpu_count() or 2), began + minutes * 60 if minutes else None)
    total = Outcome()
    for result in results:
        total.add(result.outcome)
    if total.passed + total.failed == 0:
        total.fail("FAILED: no test was run" + (": none has %r in its name" % text if text else ""))
    if os.environ.get("SANDPIPER_NO_SKIPS"):
        for reason in refused(total.skips):
            total.fail("FAILED: skipped, and not on the list of scripts/testing/skips.txt: " + reason)
    summarize(results, total, time.monotonic() - began, report)
    return 1 if total.failed else 0


def refused(skips):
    """Those that may not be skipped."""
    with open(plan.ROOT + "/scripts/testing/skips.txt") as file:
        allowed = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#")]
    return [reason for reason in skips if not any(re.fullmatch(pattern, reason) for pattern in allowed)]


def summarize(results, total, seconds, report):
    slowest = sorted(total.tests, key=lambda test: -test[1])
    with open(report + "/tests.tsv", "w") as file:
        file.writelines("%.3f\t%s\n" % (test_seconds, name) for name, test_seconds in slowest)
    print("\nslowest tests (all: %s/tests.tsv)" % report)
    for name, test_seconds in slowest[:SLOWEST]:
        print("  %7.1f s  %s" % (test_seconds, name))
    print("\n  began at   seconds  passed  failed  skipped  step")
    for result in sorted(results, key=lambda result: result.began):
        outcome = result.outcome
        print("  %8d  %8d  %6d  %6d  %7d  %s" % (result.began, result.seconds, outcome.passed, outcome.failed, len(outcome.skips),
                                                 result.step.name))
    with open(report + "/steps.json", "w") as file:
        json.dump([{"step": result.step.name, "began": result.began, "seconds": result.seconds, "passed": result.outcome.passed,
                    "failed": result.outcome.failed} for result in results], file, indent=1)
    print("\ntook %d min %d s; logs: %s" % (seconds // 60, seconds % 60, report))
    for line in total.notes:
        print(line)
    for reason in total.skips:
        print("SKIPPED: " + reason)
    print("%d passed, %d failed, %d skipped" % (total.passed, total.failed, len(total.skips)), flush=True)


def interrupted(number, _):
    steps.end_all()
    os._exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    sys.exit(main(sys.argv[1:]))
