"""Tests of what judges and shows the SDKs' results: a call that does not work must not be shown as one that does."""

import struct
import sys
import unittest

sys.dont_write_bytecode = True
import matrix  # noqa: E402
import names  # noqa: E402
import run  # noqa: E402
import verdict  # noqa: E402

LISTED = {"Volume.create": "not supported"}


def result(call, outcome, detail=""):
    one = {"language": "javascript", "version": "2.1", "transport": "headers", "mode": "async", "calls": [call], "result": outcome,
           "detail": detail}
    return one | verdict.of(one, LISTED)


class Verdicts(unittest.TestCase):
    def test_a_call_that_is_not_there_does_not_pass(self):
        self.assertEqual(result("Volume.create", "failed", "404: not supported")["verdict"], "not there")

    def test_a_call_that_fails_in_another_way_than_listed_fails(self):
        self.assertEqual(result("Volume.create", "failed", "500")["verdict"], "failed")

    def test_a_call_that_works_and_is_listed_fails(self):
        self.assertEqual(result("Volume.create", "passed")["verdict"], "failed")

    def test_a_call_that_no_list_names_is_what_it_came_to(self):
        self.assertEqual([result("files.read", outcome)["verdict"] for outcome in ("passed", "failed", "absent")],
                         ["passed", "failed", "absent"])

    def test_names_of_both_languages_are_one(self):
        self.assertEqual(verdict.snake("files.writeFiles"), "files.write_files")
        self.assertEqual(verdict.snake("CommandHandle.sendStdin"), "CommandHandle.send_stdin")


class Matrix(unittest.TestCase):
    def test_one_failure_shows_in_the_cell(self):
        table = matrix.table([("javascript", "2.1")], [result("files.read", "passed"), result("files.read", "failed")])
        self.assertIn("| `files.read` | **failed** |", table)

    def test_what_was_not_run_is_no_pass(self):
        table = matrix.table([("javascript", "2.1"), ("python", "2.2")], [result("files.read", "passed")])
        self.assertIn("| `files.read` | ✓ |  |", table)

    def test_what_a_version_does_not_have_shows_as_that(self):
        table = matrix.table([("javascript", "2.1")], [result("files.read", "absent")])
        self.assertIn("| `files.read` | — |", table)


class Runs(unittest.TestCase):
    def test_a_shorter_look_has_the_newest_of_each_language(self):
        sdks = [{"language": language, "version": version, "interpreter": "2.1"}
                for language, version in (("python", "2.9.1"), ("python", "2.10.0"), ("javascript", "2.3.0"))]
        ways = [[way[:2] for way in run.of_newest(sdk, sdks)] for sdk in sdks]
        self.assertEqual(ways, [[], [("headers", "sync")] * 2 + [("hosts", "sync")], [("headers", "async")] * 2])

    def test_an_interpreter_that_needs_names_runs_where_there_are_some(self):
        sdk = {"language": "javascript", "version": "2.3.0", "interpreter": "2.1", "interpreter_by": "hosts"}
        ways = [way for way, _, groups in run.plan(sdk) if "interpreter" in groups]
        self.assertEqual(ways, ["hosts"])


class Names(unittest.TestCase):
    def ask(self, name, kind=1):
        question = b"".join(bytes([len(label)]) + label for label in name.split(b".")) + b"\0" + struct.pack(">HH", kind, 1)
        return names.answer(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + question, b"sandboxes.test")

    def test_names_below_the_domain_are_this_machine(self):
        self.assertTrue(self.ask(b"49983-abc.Sandboxes.test").endswith(b"\x7f\0\0\x01"))

    def test_other_names_and_addresses_of_six_do_not_exist(self):
        self.assertEqual(self.ask(b"example.com")[3] & 15, names.NXDOMAIN)
        self.assertEqual(self.ask(b"a.sandboxes.test", kind=28)[6:8], b"\0\0")


if __name__ == "__main__":
    unittest.main()
