"""What is run: every step of a whole test run, the ones that others wait for first.

On a machine of two processors the guests take one for most of the time; what needs no guest runs beside them, and gives
way to them. What is built comes before them: of a machine that has built nothing yet it would get so little beside them that
nothing else had its turn.
"""

import os
import subprocess

import guests
from outcome import from_junit, from_lines, from_unittest
from steps import Step

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
CACHE = os.environ.get("SANDPIPER_CACHE", "/var/cache/sandpiper")
TARGET = os.environ.get("CARGO_TARGET_DIR", ROOT + "/target")
# What a host is made of.
HOST = ("guest kernel", "programs", "base template", "volume helper", "builder template")
# Lines of nextest that tell of one test.
NEXTEST_LINES = r"^\s+(PASS|FAIL|SLOW|TIMEOUT|SIGKILL|SIGSEGV|SIGABRT|TERMINATING|LEAK) \[|panicked at|^error"


def check(name, *argv, minutes=20, needs=(), nice=5, show=None, at_most=0):
    """A command that succeeds or fails: it counts as one test. `at_most`: Step.minutes."""
    def work(job):
        lines = job.must(argv, minutes, show)
        job.outcome.passed += 1
        for line in lines:
            job.outcome.take_skips(line)
    return Step(name, work, needs, nice, minutes=at_most)


def made(name, *argv, minutes, needs=(), nice=0, at_most=0):
    """A command that makes what other steps need; it counts as no test."""
    def work(job):
        for line in job.must(argv, minutes, show=r"\[\d\d:\d\d:\d\d\]|^\s+\d+ objects|^error"):
            job.outcome.take_skips(line)
    return Step(name, work, needs, nice, minutes=at_most)


def checks():
    return [
        made("tools", "scripts/testing/tools", minutes=30, nice=5),
        check("formatting", "scripts/testing/formatting"),
        check("the test runner's own tests", "/usr/bin/python3", "scripts/testing/tests.py"),
        check("the SDK tests' own tests", "/usr/bin/python3", "tests/sdk/selftest.py"),
        check("the package's units", "packaging/tests/units.py", show="exposure|SKIPPED"),
        check("clippy", "cargo", "clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings", minutes=60),
        check("licences, bans and sources of dependencies", "cargo", "deny", "--log-level", "error", "check", "licenses", "bans",
              "sources", needs=("tools",)),
        check("licences, bans and sources of the fuzz targets' dependencies", "cargo", "deny", "--log-level", "error",
              "--manifest-path", "tests/fuzz/Cargo.toml", "--config", "deny.toml", "check", "licenses", "bans", "sources",
              needs=("tools",)),
        Step("advisories on dependencies", advisories, ("tools",), 5),
    ]


def advisories(job):
    if job.run(["cargo", "deny", "--log-level", "off", "fetch", "db"], 2)[0] != 0:
        job.outcome.skip("advisories on dependencies: their database cannot be fetched from this machine")
        return
    job.must(["cargo", "deny", "--log-level", "error", "check", "advisories"], 5)
    job.outcome.passed += 1


def native(text):
    """The tests that need no guest, those of the API on SQLite and on PostgreSQL; of those only what has `text` in its name."""
    only = ["-E", "test(%s)" % text] if text else []
    of_api = "(%s)" % " | ".join("package(sandpiper-%s)" % name for name in ("api", "db", "delivery", "http", "payments"))
    of_api += " & test(%s)" % text if text else ""
    return [
        Step("native tests: build", lambda job: job.must(["cargo", "nextest", "run", "--workspace", "--no-run"], 60, r"^error"),
             () if text else ("tools",), 5),
        Step("native tests", lambda job: nextest(job, "default", [], only), ("native tests: build",), 5, minutes=30),
        Step("native tests: documentation", lambda job: documentation(job, text), ("native tests: build",), 5, minutes=6),
        Step("native tests: the API on PostgreSQL",
             lambda job: nextest(job, "postgres", ["scripts/lib/postgres.sh"], ["-E", of_api]), ("native tests: build",), 5, minutes=12),
    ]


def nextest(job, profile, prefix, options):
    # Beside the sources, wherever cargo builds.
    report = "%s/target/nextest/%s/junit.xml" % (ROOT, profile)
    if os.path.exists(report):
        os.unlink(report)
    nothing = "pass" if any("test(" in option for option in options) else "fail"
    status, lines = job.run([*prefix, "cargo", "nextest", "run", "--workspace", "--profile", profile, "--no-tests", nothing, *options],
                            60, NEXTEST_LINES)
    if os.path.exists(report):
        job.outcome.add(from_junit(report))
    elif nothing == "fail" and status == 0:
        job.outcome.fail("FAILED: %s: there is no report of it at %s" % (job.step.name, report))
    if status != 0:
        job.show_end(lines)
        if not job.outcome.failed:
            job.outcome.fail("FAILED: %s: exit status %s, and no test says why (%s)" % (job.step.name, status, job.log))
    if profile == "default":
        ignored = job.must(["cargo", "nextest", "list", "--workspace", "--run-ignored", "only", "--message-format", "oneline", *options], 10)
        for name in (line for line in ignored if "::" in line):
            job.outcome.skip("%s is ignored" % name.strip())


def documentation(job, text):
    status, lines = job.run(["cargo", "test", "--quiet", "--workspace", "--doc", *([text] if text else [])], 20, r"panicked at|^error")
    job.outcome.add(from_lines(lines))
    if status != 0 and not job.outcome.failed:
        job.show_end(lines)
        job.outcome.fail("FAILED: the documentation's examples do not build (%s)" % job.log)


def programs():
    return [
        made("guest kernel", "kernel-config/build", minutes=45),
        made("programs", "scripts/build", "--tests", minutes=60),
        made("base template", "scripts/base-template", minutes=20, needs=("programs",)),
        made("volume helper", "scripts/volume-helper", minutes=20, needs=("programs",)),
        made("builder template", "scripts/builder-template", minutes=20, needs=("programs",)),
    ]


def end_to_end(text):
    return [
        made("E2B's command line", "tests/sdk/install.py", minutes=10),
        Step("end-to-end tests", lambda job: guests.run(job, TARGET + "/release/e2e", text), (*HOST, "E2B's command line"),
             after=("clippy", "native tests: build")),
    ]


def fuzzing(seconds):
    targets = subprocess.run(["scripts/fuzz", "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [
        made("fuzzing: build", "scripts/fuzz", "--build", minutes=40, nice=10, at_most=14),
        check("fuzzing: clippy", "scripts/fuzz", "--lint", needs=("fuzzing: build",), nice=10, at_most=5),
        *(check("fuzzing: " + target, "scripts/fuzz", target, str(seconds), minutes=10, needs=("fuzzing: build",), nice=10,
                show="^fuzz ", at_most=1) for target in targets),
    ]


def others():
    """What else runs guests."""
    return [
        Step("the monitor on emulated Intel processors", vmx, ("guest kernel", "programs", "native tests: build"), 5, minutes=9),
        Step("scripts/demo", demo, HOST, after=("end-to-end tests",), minutes=4),
        Step("scripts/drill crash", drill, HOST, after=("scripts/demo",), minutes=8),
        Step("the official E2B SDKs", e2b_sdks, HOST, after=("scripts/drill crash",), minutes=20),
        Step("scripts/drill power", power, HOST, after=("the official E2B SDKs",), minutes=5),
        Step("the package under systemd", upgrade, HOST, after=("scripts/drill power",), minutes=7),
        Step("the nested host's own tests", nested_host, nice=5, after=("native tests: build",), minutes=5),
        Step("the package", package, ("guest kernel", "programs"), 5, minutes=3),
    ]


def sdks():
    """The official E2B SDKs without anything beside them."""
    return [Step("the official E2B SDKs", e2b_sdks, HOST)]


def vmx(job):
    status, lines = job.run(["scripts/vmx"], 20, r"^test .*\.\.\. |^vmx: |SKIPPED|panicked at|\[\d\d:\d\d:\d\d\]")
    job.outcome.add(from_lines(lines))
    if status != 0:
        job.show_end(lines)
        job.outcome.fail("FAILED: scripts/vmx: exit status %s (%s)" % (status, job.log))


def demo(job):
    with_guests(job, ["scripts/demo"], 15, r"\[\d\d:\d\d:\d\d\]", {"SANDPIPER_PROGRAMS": TARGET + "/release"})


def drill(job):
    with_guests(job, ["scripts/drill", "crash", "--minutes", "2"], 20, r"^drill crash|^FOUND|^  ")


def upgrade(job):
    with_guests(job, ["packaging/tests/upgrade.py"], 20, r" \.\.\. (ok|FAIL|ERROR)$|exposure|SKIPPED",
                {"SANDPIPER_PROGRAMS": TARGET + "/release"})


def power(job):
    with_guests(job, ["scripts/drill", "power"], 30, r"power cut: |^FOUND", own_console=guests.console_of(CACHE + "/power-cut"))


def with_guests(job, argv, minutes, show, environment=None, own_console=None):
    """A command that runs guests and succeeds or fails: it counts as one test."""
    status, lines = guests.command(job, argv, minutes, show, environment, own_console)
    if status == 0:
        job.outcome.passed += 1
        return
    job.show_end(lines)
    job.outcome.fail("FAILED: %s: exit status %s (%s)" % (job.step.name, status, job.log))


def e2b_sdks(job):
    status, lines = guests.command(job, ["tests/sdk/run.py"], 90, r"^test .*FAILED|\[\d\d:\d\d:\d\d\]|^sdk |SKIPPED",
                                   {"SANDPIPER_PROGRAMS": TARGET + "/release"})
    job.outcome.add(from_lines(lines))
    if status != 0:
        job.show_end(lines)
        if not job.outcome.failed:
            job.outcome.fail("FAILED: %s: exit status %s (%s)" % (job.step.name, status, job.log))


def package(job):
    kernel = job.must(["kernel-config/build"], 5)[-1]
    lines = job.must(["packaging/tests/package.py"], 10, r" \.\.\. (ok|FAIL|ERROR)$|SKIPPED",
                     {"SANDPIPER_PROGRAMS": TARGET + "/release", "SANDPIPER_KERNEL": kernel})
    for line in lines:
        job.outcome.take_skips(line)
    count(job, from_unittest(lines)[0])


def nested_host(job):
    """Beside everything else a test of it may run out of time: one that fails is run once more, and named."""
    command, shown = ["scripts/nested/test", "-v"], r" \.\.\. (ok|FAIL|ERROR)$"
    status, lines = job.run(command, 15, shown)
    ran, failures = from_unittest(lines)
    if status != 0:
        job.show_end(lines)
        again = job.run([*command, *failures], 10, shown) if failures and all("." in name for name in failures) else None
        if again and again[0] == 0:
            for name in failures:
                job.outcome.is_unstable("%s of %s" % (name, job.step.name))
        else:
            job.outcome.passed += max(0, ran - len(failures))
            reasons = "".join("; %s: %s" % failure for failure in failures.items())
            job.outcome.fail("FAILED: %s: exit status %s%s (%s)" % (job.step.name, status, reasons, job.log))
            return
    count(job, ran)


def count(job, ran):
    """Counts the tests of a program of which all passed."""
    if not ran:
        job.outcome.fail("FAILED: %s ran no test (%s)" % (job.step.name, job.log))
    job.outcome.passed += ran
