"""What a step of a test run came to, and reading that from what test programs print and write."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

# How a test says that it could not run here; the reason follows.
SKIPPED = re.compile(r"SKIPPED[:,]? +(.+)")
# A test of the end-to-end program, and of Rust's own test programs, which print no time.
TEST_LINE = re.compile(r"^test (?P<name>\S+)(?: - should panic)? \.\.\. (?P<result>ok|FAILED|ignored)\b(?:.*\((?P<seconds>[0-9.]+) s\))?")
# Of the end-to-end program: a test that failed before it passed.
UNSTABLE_LINE = re.compile(r"^unstable: (?P<name>\S+)$")
# Of Python's unittest, at its end: a test that failed, and how many ran.
UNITTEST_FAILURE = re.compile(r"^(?:FAIL|ERROR): (?P<name>\w+) \(__main__\.?(?P<path>[\w.]*)\)")
UNITTEST_TOTAL = re.compile(r"^Ran (?P<ran>\d+) tests? in ")
TOTAL_LINE = re.compile(r"^test result: \S+ (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<ignored>\d+) ignored")


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    # Why something did not run, once for each reason.
    skips: list[str] = field(default_factory=list)
    # (test, seconds) of each that ran.
    tests: list[tuple[str, float]] = field(default_factory=list)
    # What the summary must say besides.
    notes: list[str] = field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        for reason in other.skips:
            self.skip(reason)
        self.tests += other.tests
        self.notes += other.notes

    def skip(self, reason):
        reason = reason.strip().rstrip("*").strip()
        if reason not in self.skips:
            self.skips.append(reason)

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)

    def is_unstable(self, name):
        self.notes.append("UNSTABLE: %s failed once and passed when it was run again: see why" % name)

    def take_skips(self, text):
        for line in text.splitlines():
            if found := SKIPPED.search(line):
                self.skip(found[1])


def from_junit(path):
    """The tests of a run of nextest, from the report that it wrote."""
    outcome = Outcome()
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            name = "%s %s" % (suite.get("name"), case.get("name"))
            outcome.tests.append((name, float(case.get("time", 0))))
            if case.find("failure") is None and case.find("error") is None:
                outcome.passed += 1
                if case.find("flakyFailure") is not None or case.find("flakyError") is not None:
                    outcome.is_unstable(name)
            else:
                outcome.failed += 1
                outcome.notes.append("FAILED: " + name)
            for stream in ("system-out", "system-err"):
                outcome.take_skips(case.findtext(stream) or "")
    return outcome


def from_lines(lines):
    """The tests of programs that print a line for each, and one for all at the end."""
    outcome = Outcome()
    failed = []
    for line in lines:
        if found := SKIPPED.search(line):
            outcome.skip(found[1])
        elif found := TEST_LINE.match(line):
            if found["result"] == "ignored":
                outcome.skip("%s is ignored" % found["name"])
                continue
            outcome.tests.append((found["name"], float(found["seconds"] or 0)))
            if found["result"] == "FAILED" and found["name"] not in failed:
                failed.append(found["name"])
        elif found := UNSTABLE_LINE.match(line):
            failed.remove(found["name"])
            outcome.is_unstable(found["name"])
        elif found := TOTAL_LINE.match(line):
            outcome.passed += int(found["passed"])
            outcome.failed += int(found["failed"])
    outcome.notes += ["FAILED: " + name for name in failed]
    return outcome


def from_unittest(lines):
    """How many tests of a program of Python's unittest ran, and of each that failed its name and the line that says why.

    A module's or a class's own setting up has the name of that function.
    """
    ran, failures, name = 0, {}, None
    for line in lines:
        if found := UNITTEST_FAILURE.match(line):
            name = found["path"] or found["name"]
            failures[name] = ""
        elif found := UNITTEST_TOTAL.match(line):
            ran, name = int(found["ran"]), None
        elif name and re.match(r"\w[\w.]*(?:: |$)", line):
            failures[name] = line
    return ran, failures
