#!/usr/bin/env python3
"""The units, as systemd reads them: valid, and no more exposed than they need be.

    packaging/tests/units.py

Reads files only: no systemd runs. Prints the score of each, from 0 (nothing exposed) to 10.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from machine import settings  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "systemd")
# Highest scores of `systemd-analyze security`, in tenths. The agent makes namespaces, links and firewalls as root, and may have no
# mount namespace of its own (its unit says why): that is most of what is left.
MOST = {"sandpiper-agent.service": 61, "sandpiper-api.service": 13}
# Whatever of these is set gives a service a mount namespace (systemd.exec(5), and exec_needs_mount_namespace() in its source).
MOUNT_NAMESPACE = ("BindPaths BindReadOnlyPaths CacheDirectory ConfigurationDirectory DynamicUser ExecPaths ExtensionImages "
                   "InaccessiblePaths LogsDirectory LogNamespace MountAPIVFS MountFlags MountImages NoExecPaths PrivateDevices "
                   "PrivateIPC PrivateMounts PrivateTmp PrivateUsers ProcSubset ProtectControlGroups ProtectHome ProtectKernelLogs "
                   "ProtectKernelModules ProtectKernelTunables ProtectProc ProtectSystem ReadOnlyPaths ReadWritePaths RootDirectory "
                   "RootImage RuntimeDirectory StateDirectory TemporaryFileSystem").split()


def settings_of(unit):
    with open(os.path.join(FOLDER, unit)) as file:
        return settings(file.read())


class Units(unittest.TestCase):
    def test_systemd_finds_no_fault_with_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for unit in MOST:
                # The programs are not on this machine: for this they are others.
                with open(os.path.join(FOLDER, unit)) as source, open(os.path.join(folder, unit), "w") as copy:
                    copy.write(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", source.read(), flags=re.MULTILINE))
            units = [os.path.join(folder, unit) for unit in MOST]
            ran = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units], capture_output=True, text=True)
        said = [line for line in ran.stderr.splitlines() if "sandpiper" in line]
        self.assertEqual((ran.returncode, said), (0, []), ran.stderr)

    def test_they_expose_no_more_than_they_did(self):
        for unit, most in MOST.items():
            with self.subTest(unit):
                ran = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=%d" % most,
                                      os.path.join(FOLDER, unit)], capture_output=True, text=True)
                score = re.search(r"Overall exposure level for \S+: ([0-9.]+)", ran.stdout)
                self.assertTrue(score, ran.stdout + ran.stderr)
                print("%s: exposure %s, at most %.1f" % (unit, score[1], most / 10))
                self.assertEqual(ran.returncode, 0, ran.stdout)

    def test_an_end_of_the_agent_leaves_its_monitors_and_their_networks(self):
        agent = settings_of("sandpiper-agent.service")
        self.assertEqual(agent["KillMode"], ["process"])
        self.assertEqual(agent["Delegate"], ["cpu memory pids"])
        self.assertEqual([key for key in MOUNT_NAMESPACE if key in agent], [])
        # By clone3(2) monitors are started, which this forbids.
        self.assertNotIn("RestrictNamespaces", agent)

    def test_the_agent_is_started_before_the_api_and_neither_bound_to_it_nor_before_it_on_a_processor(self):
        api, agent = settings_of("sandpiper-api.service"), settings_of("sandpiper-agent.service")
        self.assertIn("sandpiper-agent.service", api["After"][0])
        self.assertEqual(api["Wants"], ["sandpiper-agent.service"])
        self.assertEqual((api["Nice"], "Nice" in agent), (["-10"], False))
        for binding in ("Requires", "BindsTo", "PartOf"):
            self.assertNotIn(binding, {**api, **agent})


if __name__ == "__main__":
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: the units: this machine does not have systemd-analyze", file=sys.stderr)
        sys.exit(0)
    unittest.main(verbosity=2)
