"""The end-to-end tests, where guests run; and what counts when the nested host dies under them.

The nested host is software emulation, and its emulator has faults of its own. When it dies, the tests that have no result
yet run in a new one; another command that runs guests begins again. Only if the console shows a fault of `emulator-faults.txt`
is that no failure; the summary names it in any case. When it kills a guest, the test that fails is run once more, and named.
On a machine whose own KVM runs guests (rung 1) nothing is run twice.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

from outcome import TEST_LINE, from_lines

HERE = os.path.dirname(os.path.realpath(__file__))
ATTEMPTS = 3
MINUTES = 90
# End-to-end tests that may be run once more. Where more fail, something is wrong.
SECOND_RUNS = 3
# Of a run that has a deadline, what the end-to-end tests leave to the steps that come after them.
MINUTES_AFTER = 15
# What they may take of those, should a test wait for long: the run ends with its report all the same.
MINUTES_LATE = 10
# The status of scripts/host for a nested host that died while the command ran.
DIED = 125
# The test at the end of each module: the host holds what it held before.
COMPARISON = "::leaves_nothing_behind"
CONSOLE = "/run/sandpiper-nested/console.log"
SHOWN = r"^test .*\.\.\. |^test .* is run once more|^test result|panicked at|nested host|^error"


def run(job, program, text):
    listed = names(subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout)
    open_tests = [name for name in listed if text in name]
    if not listed:
        job.outcome.fail("FAILED: %s lists no test" % program)
    nested = subprocess.run(["scripts/host", "--rung"], capture_output=True, text=True, check=True).stdout.strip() != "1"
    for attempt in range(1, ATTEMPTS + 1):
        if not open_tests:
            return
        within, minutes = bound(job)
        options = [*within, *(["--second-runs", str(SECOND_RUNS)] if nested else []), "--exact"]
        status, lines = job.run(["scripts/host", "--", program, *options, *open_tests], minutes, SHOWN)
        outcome = from_lines(lines)
        ended = {found["name"] for line in lines if (found := TEST_LINE.match(line))}
        open_tests = [name for name in open_tests if name not in ended]
        if any(line.startswith("test result") for line in lines):
            job.outcome.add(outcome)
            if status != 0 and not outcome.failed:
                job.outcome.fail("FAILED: the end-to-end tests: exit status %s, and no test says why (%s)" % (status, job.log))
            if open_tests:
                job.outcome.fail("FAILED: these end-to-end tests have no result: " + ", ".join(open_tests))
            return
        count_unfinished(outcome, lines)
        job.outcome.add(outcome)
        job.show_end(lines)
        if not (nested and status in (DIED, None)):
            job.outcome.fail("FAILED: the end-to-end tests ended early with status %s (%s)" % (status, job.log))
            return
        explain(job, status, attempt, open_tests)
        open_tests = comparable(job, open_tests)
    if open_tests:
        job.outcome.fail("FAILED: the nested host died %d times; never run: %s" % (ATTEMPTS, ", ".join(open_tests)))


def bound(job):
    """The option by which the tests leave out those that there is no time for, and the minutes after which all are ended."""
    if not job.deadline:
        return [], MINUTES
    minutes = max(0, (job.deadline - time.monotonic()) / 60 - MINUTES_AFTER)
    return ["--minutes", "%d" % minutes], minutes + MINUTES_LATE


def names(listing):
    return re.findall(r"^(\S+): test$", listing, re.MULTILINE)


def comparable(job, tests):
    """Leaves out the comparison at a module's end where no test of the module is left: what it began with is gone."""
    modules = {name.split("::")[0] for name in tests if not name.endswith(COMPARISON)}
    for name in tests:
        if name.endswith(COMPARISON) and name.split("::")[0] not in modules:
            job.outcome.notes.append("NOT RUN: %s: the nested host that held what it compares is gone" % name)
    return [name for name in tests if name.split("::")[0] in modules]


def count_unfinished(outcome, lines):
    """Counts the results of a run that did not come to its own count."""
    for line in lines:
        if found := TEST_LINE.match(line):
            outcome.passed += found["result"] == "ok"
            outcome.failed += found["result"] == "FAILED"


def explain(job, status, attempt, open_tests):
    """Keeps the console of a nested host that died or hangs, and says whether that is a known fault of the emulator."""
    kept = "%s.console-%d.log" % (job.log.removesuffix(".log"), attempt)
    if status is None:
        subprocess.run(["scripts/host", "--stop"], check=False)
    shutil.copyfile(CONSOLE, kept)
    with open(kept, errors="replace") as file:
        fault = known_fault(file.read())
    what = "the nested host %s (console: %s), %d tests were run in a new one" % (
        "hung" if status is None else "died", kept, len(open_tests))
    if fault:
        job.outcome.notes.append("REPEATED: %s: %s" % (what, fault))
    else:
        job.outcome.fail("FAILED: %s: no known fault of the emulator" % what)


def command(job, argv, minutes, show, environment=None, own_console=None):
    """Runs a command that runs guests, again where the nested host died of a known fault; its exit status and lines.

    `own_console`: of a command that starts and ends a nested host by itself.
    """
    console = own_console or CONSOLE
    for attempt in range(1, ATTEMPTS + 1):
        began = time.time()
        status, lines = job.run(argv, minutes, show, environment)
        fault = died_of(console, began) if status != 0 and attempt < ATTEMPTS else None
        if not fault:
            return status, lines
        kept = "%s.console-%d.log" % (job.log.removesuffix(".log"), attempt)
        shutil.copyfile(console, kept)
        job.outcome.notes.append("REPEATED: the nested host died (console: %s), it was run again: %s" % (kept, fault))
        if not own_console:
            # What is left of the dying one is nobody's.
            subprocess.run(["scripts/host", "--stop"], check=False)


def console_of(cache):
    """The console of the nested host that has this cache."""
    return "/run/sandpiper-nested-%s/console.log" % hashlib.sha256(cache.encode()).hexdigest()[:8]


def died_of(console, began):
    """The known fault that the console shows, if something was written to it since `began`."""
    if not os.path.exists(console) or os.path.getmtime(console) < began:
        return None
    with open(console, errors="replace") as file:
        return known_fault(file.read())


def known_fault(console):
    """What a line of `emulator-faults.txt` calls the fault that this console shows, if one does."""
    with open(HERE + "/emulator-faults.txt") as file:
        for line in file:
            name, _, signature = line.rstrip("\n").partition(": ")
            if signature and not line.startswith("#") and re.search(signature, console):
                return name
    return None
