"""Tests of the test runner itself: a test run must not be green for want of tests."""

import os
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock
import unittest.mock

sys.dont_write_bytecode = True
import guests  # noqa: E402
import main  # noqa: E402
import outcome  # noqa: E402
import plan  # noqa: E402
from steps import Step, run_all  # noqa: E402

JUNIT = """<testsuites>
<testsuite name="sandpiper-vmm::monitor">
  <testcase name="control::answers" time="1.500"><system-out>SKIPPED: no guest was run: /dev/kvm</system-out></testcase>
  <testcase name="control::breaks" time="0.1"><failure type="test failure">panicked</failure></testcase>
  <testcase name="control::wavers" time="0.1"><flakyFailure type="test failure">panicked</flakyFailure></testcase>
</testsuite>
</testsuites>"""


def results_of(steps, at_once=2):
    with tempfile.TemporaryDirectory() as folder:
        return {result.step.name: result.outcome for result in run_all(steps, folder, at_once)}


class Outcomes(unittest.TestCase):
    def test_a_report_of_nextest_gives_results_times_and_skips(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(JUNIT)
            file.flush()
            read = outcome.from_junit(file.name)
        self.assertEqual((read.passed, read.failed), (2, 1))
        self.assertEqual(read.tests[0], ("sandpiper-vmm::monitor control::answers", 1.5))
        self.assertEqual(read.skips, ["no guest was run: /dev/kvm"])
        self.assertEqual([note.split(": ")[0] for note in read.notes], ["FAILED", "UNSTABLE"])
        self.assertIn("sandpiper-vmm::monitor control::wavers", read.notes[1])

    def test_lines_of_tests_are_counted_by_their_total(self):
        read = outcome.from_lines(["test warm::one ... ok (2.5 s)", "test warm::two ... FAILED (1.0 s)", "test three ... ignored",
                                   "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured"])
        self.assertEqual((read.passed, read.failed), (1, 1))
        self.assertEqual(read.tests, [("warm::one", 2.5), ("warm::two", 1.0)])
        self.assertEqual(read.skips, ["three is ignored"])

    def test_a_test_that_passed_when_it_was_run_again_is_unstable(self):
        read = outcome.from_lines(["test one ... FAILED (1.0 s)", "test two ... FAILED (1.0 s)", "test one ... ok (2.0 s)",
                                   "test two ... FAILED (1.0 s)", "unstable: one", "test result: FAILED. 1 passed; 1 failed; 0 ignored"])
        self.assertEqual((read.passed, read.failed), (1, 1))
        self.assertEqual([note.split(" failed")[0] for note in read.notes], ["UNSTABLE: one", "FAILED: two"])

    def test_failures_of_unittest_are_read_with_their_reasons(self):
        ran, failures = outcome.from_unittest([
            "test_a (__main__.Life.test_a) ... FAIL", "ERROR: test_a (__main__.Life.test_a)", "-" * 70,
            "Traceback (most recent call last):", '  File "test", line 1, in test_a', "    raise Late()",
            "subprocess.TimeoutExpired: Command 'host' timed out", "", "Ran 21 tests in 80.1s", "FAILED (errors=1)"])
        self.assertEqual((ran, failures), (21, {"Life.test_a": "subprocess.TimeoutExpired: Command 'host' timed out"}))
        self.assertEqual(outcome.from_unittest(["ERROR: setUpModule (__main__)", "OSError: full"]), (0, {"setUpModule": "OSError: full"}))

    def test_a_reason_is_listed_once(self):
        read = outcome.Outcome()
        read.take_skips("*** SKIPPED, no monitor was jailed: not root\nSKIPPED: no monitor was jailed: not root")
        self.assertEqual(read.skips, ["no monitor was jailed: not root"])


class NativeTests(unittest.TestCase):
    def outcome_of(self, report):
        """Of a run that says it went well, and writes this report."""
        with tempfile.TemporaryDirectory() as root:
            path = root + "/target/nextest/default/junit.xml"

            class Job:
                step, log, outcome = Step("native tests", None), "log", outcome.Outcome()

                def run(self, *_):
                    if report:
                        os.makedirs(os.path.dirname(path))
                        with open(path, "w") as file:
                            file.write(report)
                    return 0, []

                def must(self, *_):
                    return []

            with unittest.mock.patch.object(plan, "ROOT", root):
                plan.nextest(Job(), "default", [], [])
            return Job.outcome

    def test_their_report_is_found_wherever_cargo_builds(self):
        with unittest.mock.patch.object(plan, "TARGET", "/elsewhere"):
            read = self.outcome_of(JUNIT)
        self.assertEqual((read.passed, read.failed, len(read.skips)), (2, 1, 1))

    def test_a_run_without_a_report_fails(self):
        self.assertEqual(self.outcome_of(None).failed, 1)


class Steps(unittest.TestCase):
    def test_a_step_waits_for_what_it_needs(self):
        order = []
        ended = results_of([Step("second", lambda job: order.append("second"), ("first",)),
                            Step("first", lambda job: order.append("first"))])
        self.assertEqual(order, ["first", "second"])
        self.assertEqual([outcome.failed for outcome in ended.values()], [0, 0])

    def test_what_needs_a_failed_step_does_not_run_and_fails(self):
        ended = results_of([Step("build", lambda job: job.must(["false"], 1)),
                            Step("tests", lambda job: self.fail("it ran"), ("build",))])
        self.assertEqual(ended["build"].failed, 1)
        self.assertEqual(ended["tests"].notes, ["NOT RUN: tests, because of build"])

    def test_what_comes_after_a_failed_step_runs(self):
        ended = results_of([Step("later", lambda job: job.must(["true"], 1), after=("first",)),
                            Step("first", lambda job: job.must(["false"], 1))])
        self.assertEqual((ended["first"].failed, ended["later"].failed), (1, 0))

    def test_nobody_waits_for_the_end_of_what_is_not_run(self):
        ended = results_of([Step("later", lambda job: job.must(["true"], 1), after=("of another run",))])
        self.assertEqual(ended["later"].failed, 0)

    def test_a_step_that_takes_too_long_is_ended_with_all_it_started(self):
        ended = results_of([Step("slow", lambda job: job.must(["sh", "-c", "sleep 3600 & wait"], 0.01))])
        self.assertEqual(ended["slow"].failed, 1)
        self.assertIn("took longer", ended["slow"].notes[0])

    def test_what_would_not_end_in_time_is_skipped_and_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            steps = [Step("long", lambda job: self.fail("it ran"), minutes=2), Step("short", lambda job: job.must(["true"], 1), minutes=0.1),
                     Step("build", lambda job: job.must(["true"], 1))]
            ended = {result.step.name: result.outcome for result in run_all(steps, folder, 2, time.monotonic() + 60)}
        self.assertEqual([ended[name].failed for name in ("long", "short", "build")], [0, 0, 0])
        self.assertEqual(main.refused(ended["long"].skips), [])
        self.assertEqual((len(ended["long"].skips), ended["short"].skips), (1, []))

    def test_a_need_that_nobody_makes_is_an_error(self):
        with self.assertRaises(ValueError):
            results_of([Step("tests", lambda job: None, ("nothing",))])


class Skips(unittest.TestCase):
    def test_only_what_the_list_names_may_be_skipped(self):
        listed = "advisories on dependencies: their database cannot be fetched from this machine"
        self.assertEqual(main.refused([listed, "no guest was run: /dev/kvm", listed + " today"]),
                         ["no guest was run: /dev/kvm", listed + " today"])


class EmulatorFaults(unittest.TestCase):
    def test_a_console_without_a_known_fault_is_none(self):
        self.assertIsNone(guests.known_fault("Kernel panic - not syncing: Attempted to kill init!"))

    def test_a_known_fault_is_named(self):
        console = "BUG: kernel NULL pointer dereference, address: 0000000000000000\n...\nRIP: 0010:prepare_creds+0x5/0x2b0\n"
        self.assertIn("group_info", guests.known_fault(console))

    def test_a_breakpoint_is_known_only_where_there_is_none_any_more(self):
        console = "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\nRIP: 0010:svm_vcpu_load+0x54/0x150 [kvm_amd]\nCode: eb 39 cc cc %s <90> 48 8b\n"
        self.assertIn("breakpoint", guests.known_fault(console % "66"))
        self.assertIsNone(guests.known_fault(console % "cc"))

    def test_flags_are_known_only_where_no_processor_has_them(self):
        console = "Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI\nRIP: 0010:fuse_perform_write+0xbe/0x880\nRSP: 0018:ffffc90000497900 EFLAGS: %s\n"
        self.assertIn("flags", guests.known_fault(console % "5ff89613"))
        self.assertIsNone(guests.known_fault(console % "00010613"))

    def test_every_line_of_the_list_has_a_name_and_a_pattern(self):
        with open(os.path.dirname(os.path.realpath(__file__)) + "/emulator-faults.txt") as file:
            for line in file:
                self.assertTrue(line.startswith("#") or ": " in line, line)


class Bounds(unittest.TestCase):
    def test_without_a_deadline_no_test_is_left_out(self):
        self.assertEqual(guests.bound(types.SimpleNamespace(deadline=None)), ([], guests.MINUTES))

    def test_whatever_a_test_waits_for_they_end_before_the_runs_deadline(self):
        for left in (78, 20, 1, -5):
            (_, within), minutes = guests.bound(types.SimpleNamespace(deadline=time.monotonic() + left * 60))
            # A moment has passed since: the last minute is not whole any more.
            self.assertEqual(int(within), max(0, left - guests.MINUTES_AFTER - 1))
            self.assertLessEqual(minutes, max(left - guests.MINUTES_AFTER, 0) + guests.MINUTES_LATE)
        self.assertLess(guests.MINUTES_LATE, guests.MINUTES_AFTER)


class Listing(unittest.TestCase):
    def test_tests_are_read_from_a_listing(self):
        self.assertEqual(guests.names("warm::a: test\nwarm::b: test\n\n2 tests, 0 benchmarks\n"), ["warm::a", "warm::b"])


class Repeating(unittest.TestCase):
    def test_a_comparison_without_its_module_is_named_and_left_out(self):
        job = type("Job", (), {"outcome": outcome.Outcome()})
        left = guests.comparable(job, ["warm::leaves_nothing_behind", "fork::two", "fork::leaves_nothing_behind"])
        self.assertEqual(left, ["fork::two", "fork::leaves_nothing_behind"])
        self.assertIn("warm::leaves_nothing_behind", job.outcome.notes[0])


class Command(unittest.TestCase):
    FAULT = "Oops: int3: 0000 [#1]\nCode: 66 <90>\n"

    def run_with(self, *ends):
        """Runs a command whose ends are an exit status and what the console shows then."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ends, console = list(ends), folder.name + "/console.log"

        def run(*_):
            status, text = ends.pop(0)
            if text:
                with open(console, "w") as file:
                    file.write(text)
            return status, []
        job = type("Job", (), {"outcome": outcome.Outcome(), "log": folder.name + "/step.log", "run": staticmethod(run)})
        with mock.patch.multiple(guests, CONSOLE=console), mock.patch.object(guests.subprocess, "run"):
            status, _ = guests.command(job, ["drill"], 1, None)
        return status, job.outcome.notes, ends

    def test_it_runs_again_after_a_known_fault_and_says_so(self):
        status, notes, left = self.run_with((125, self.FAULT), (0, ""))
        self.assertEqual((status, len(notes), left), (0, 1, []))

    def test_a_failure_that_the_console_does_not_explain_is_one(self):
        self.assertEqual(self.run_with((1, "Kernel panic"), (0, ""))[0], 1)
        self.assertEqual(self.run_with((1, ""), (0, ""))[0], 1)

    def test_the_console_of_a_nested_host_of_its_own_counts(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(guests.subprocess, "run") as other:
            ends = [(1, self.FAULT), (0, "")]

            def run(*_):
                status, text = ends.pop(0)
                with open(folder + "/console.log", "a") as file:
                    file.write(text)
                return status, []
            job = type("Job", (), {"outcome": outcome.Outcome(), "log": folder + "/step.log", "run": staticmethod(run)})
            status, _ = guests.command(job, ["drill"], 1, None, own_console=folder + "/console.log")
        self.assertEqual((status, len(job.outcome.notes), ends), (0, 1, []))
        other.assert_not_called()

    def test_a_cache_has_a_console_where_the_nested_host_writes_it(self):
        script = "import life; print(life.RUN + '/console.log')"
        folder = os.path.join(plan.ROOT, "scripts/nested")
        told = subprocess.run([sys.executable, "-c", script], cwd=folder, env={**os.environ, "SANDPIPER_CACHE": "/elsewhere"},
                              capture_output=True, text=True, check=True).stdout
        self.assertEqual(guests.console_of("/elsewhere") + "\n", told)

    def test_it_is_not_repeated_for_ever(self):
        status, notes, left = self.run_with(*[(125, self.FAULT)] * (guests.ATTEMPTS + 1))
        self.assertEqual((status, len(notes), len(left)), (125, guests.ATTEMPTS - 1, 1))


if __name__ == "__main__":
    unittest.main()
