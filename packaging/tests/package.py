#!/usr/bin/env python3
"""The package, installed, upgraded, removed and purged on a machine to throw away (machine.py).

    SANDPIPER_PROGRAMS=FOLDER packaging/tests/package.py [TEST...]

As root. With SANDPIPER_KERNEL=FILE the package has that guest kernel. It starts agent and API by the ExecStart lines of their units; no
guest runs.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import system_calls  # noqa: E402
from machine import Machine, enter_namespaces  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
URL = "http://127.0.0.1:7070"
AGENT, API = "sandpiper-agent.service", "sandpiper-api.service"


def built(version, folder):
    """The package of this checkout."""
    made = subprocess.run([ROOT + "/scripts/package", "--output", folder, "--version", version], stdout=subprocess.PIPE, text=True,
                          check=True)
    return made.stdout.strip()


def changed(package, version, change):
    """Another version of a package, after `change` of its unpacked tree. Not compressed, which takes most of the time."""
    folder = tempfile.mkdtemp(dir=os.path.dirname(package))
    tree, control = folder + "/tree", folder + "/tree/DEBIAN/control"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    with open(control) as file:
        lines = file.read().splitlines(keepends=True)
    with open(control, "w") as file:
        file.writelines("Version: %s\n" % version if line.startswith("Version: ") else line for line in lines)
    change(tree)
    other = folder + "/package.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, other], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return other


def get(path, key=None):
    """Status and body; None while nobody listens."""
    request = urllib.request.Request(URL + path, headers={"Authorization": "Bearer " + key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return None


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.first = built("0.1.0~test1", cls.folder)

        def change(tree):
            with open(tree + "/etc/sandpiper/agent.toml", "a") as file:
                file.write("# Of the second version.\n")
        cls.second = changed(cls.first, "0.1.0~test2", change)

    def setUp(self):
        self.machine = Machine()
        self.addCleanup(self.machine.close)

    def start(self, before_agent=(), before_api=()):
        """Agent and API, once the API says that the agent is there."""
        agent, api = self.machine.start(AGENT, before_agent), self.machine.start(API, before_api)
        agent.wait_until("its socket", lambda: self.machine.has("/run/sandpiper/agent.sock"))
        api.wait_until("it has the agent", lambda: get("/healthz") == (200, {"status": "ok", "agent": "up"}))
        return agent, api

    def key(self):
        """A new key, made as the operator makes one."""
        said = self.machine.run("sandpiper-api", "key", "create", "--config", "/etc/sandpiper/api.toml", "--team", "acme",
                                "--capability", "write")
        return re.search("spk_[0-9a-f]+", said)[0]

    def test_the_same_commit_gives_the_same_package(self):
        again = tempfile.mkdtemp(dir=self.folder)
        digests = set()
        for package in (self.first, built("0.1.0~test1", again)):
            with open(package, "rb") as file:
                digests.add(hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else
                            hashlib.sha256(file.read()).hexdigest())
        self.assertEqual(len(digests), 1)

    def test_it_installs_twice_with_the_right_owners_and_modes_and_enabled_units(self):
        machine = self.machine
        for _ in range(2):
            machine.install(self.first)
            for path, access in {
                "/var/lib/sandpiper": "711 root:root",
                "/var/lib/sandpiper/api": "700 sandpiper:sandpiper",
                "/run/sandpiper": "755 root:root",
                "/etc/sandpiper": "755 root:root",
                "/etc/sandpiper/agent.toml": "640 root:root",
                "/etc/sandpiper/api.toml": "640 root:sandpiper",
                "/etc/sandpiper/egress-profiles.json": "644 root:root",
                "/usr/lib/sandpiper/sandpiper-vmm": "755 root:root",
                "/usr/lib/sandpiper/vmlinux": "644 root:root",
            }.items():
                self.assertEqual(machine.access(path), access, path)
            for unit in (AGENT, API):
                self.assertTrue(machine.has("/etc/systemd/system/multi-user.target.wants/" + unit), unit)
            self.assertIn("/usr/sbin/nologin", machine.run("getent", "passwd", "sandpiper"))
            self.assertEqual(machine.run("dpkg", "--verify", "sandpiper"), "")
        for program in ("sandpiper", "sandpiper-agent", "sandpiper-api"):
            self.assertIn("sandpiper", machine.run(program, "--version"))
        self.assertIn("valid", machine.run("sandpiper-agent", "--config", "/etc/sandpiper/agent.toml", "--check-config"))

    def test_agent_and_api_of_it_respond_with_what_their_units_leave_them(self):
        machine = self.machine
        machine.install(self.first)
        self.start()
        key = self.key()
        self.assertEqual(get("/v1/sandboxes", key), (200, {"sandboxes": []}))
        self.assertEqual(get("/v1/sandboxes")[0], 401)
        for path, access in {
            "/run/sandpiper/agent.sock": "660 root:sandpiper",
            "/var/lib/sandpiper/record.key": "600 root:root",
            "/var/lib/sandpiper/session.key": "600 root:root",
            "/var/lib/sandpiper/api/secrets.key": "600 sandpiper:sandpiper",
            "/var/lib/sandpiper/api/sandpiper.db": "600 sandpiper:sandpiper",
        }.items():
            self.assertEqual(machine.access(path), access, path)
        self.assertIn("0 sandboxes paused", machine.run("sandpiper", "host", "drain"))
        # Whatever it thinks of this machine.
        found = json.loads(machine.run("sandpiper", "--json", "doctor", check=False).splitlines()[-1])["checks"]
        verdicts = {(check["name"], check["verdict"]) for check in found}
        for name in ("guest kernel", "agent settings", "agent keys", "api settings", "secrets key", "database"):
            self.assertIn((name, "ok"), verdicts, found)

    def test_backups_of_root_are_restored_for_the_user_who_serves(self):
        machine = self.machine
        machine.install(self.first)
        services, key = self.start(), self.key()
        config = ("--config", "/etc/sandpiper/api.toml")
        machine.run("sandpiper-api", "backup", *config, "--to", "/root/while-it-serves")
        for service in reversed(services):
            self.assertEqual(service.stop(), 0)
        # Now root is the one who makes what SQLite has beside its file.
        machine.run("sandpiper-api", "backup", *config, "--to", "/root/while-nothing-serves")
        for service in reversed(self.start()):
            self.assertEqual(service.stop(), 0)

        for backup in ("while-it-serves", "while-nothing-serves"):
            self.assertEqual(machine.access("/root/" + backup), "700 root:root")
            machine.run("rm", "-r", "/var/lib/sandpiper/api")
            machine.run("sandpiper-api", "restore", *config, "--from", "/root/" + backup)
            self.assertEqual(machine.access("/var/lib/sandpiper/api"), "700 sandpiper:sandpiper")
            for name in ("sandpiper.db", "secrets.key"):
                self.assertEqual(machine.access("/var/lib/sandpiper/api/" + name), "600 sandpiper:sandpiper")
            services = self.start()
            self.assertEqual(get("/v1/sandboxes", key), (200, {"sandboxes": []}), backup)
            for service in reversed(services):
                self.assertEqual(service.stop(), 0)

    def test_they_make_no_system_call_that_their_units_forbid(self):
        machine = self.machine
        machine.install(self.first)
        machine.run("chmod", "1777", "/var/tmp")
        summaries = {unit: "/var/tmp/" + unit for unit in (AGENT, API)}
        services = self.start(*(["strace", "-f", "-c", "-o", summaries[unit]] for unit in (AGENT, API)))
        self.assertEqual(get("/v1/sandboxes", self.key()), (200, {"sandboxes": []}))
        for service, program in zip(services, ("sandpiper-agent", "sandpiper-api")):
            # strace passes no signal on, and ends with what it traces.
            machine.run("pkill", "-TERM", "-x", program)
            self.assertEqual(service.process.wait(90), 0, service.said())
            made = system_calls.made(machine.read(summaries[service.unit]).decode())
            self.assertTrue({"openat", "socket", "epoll_wait"} <= made, made)
            self.assertEqual(system_calls.forbidden(service.settings["SystemCallFilter"], made), set(), service.unit)

    def test_an_upgrade_keeps_settings_secrets_and_what_runs(self):
        machine = self.machine
        machine.install(self.first)
        agent, api = self.start()
        key = self.key()
        machine.append("/etc/sandpiper/api.toml", "volume_size_gib = 7  # the operator's\n")
        machine.run("chmod", "600", "/etc/sandpiper/agent.toml")
        machine.run("systemctl", "disable", API)
        kept = ("/etc/sandpiper/api.toml", "/etc/sandpiper/egress-profiles.json", "/var/lib/sandpiper/record.key",
                "/var/lib/sandpiper/session.key", "/var/lib/sandpiper/api/secrets.key")
        before = {path: machine.read(path) for path in kept}

        machine.install(self.second)

        self.assertTrue(agent.is_running() and api.is_running(), "only systemd ends them, to start them anew")
        self.assertEqual(get("/healthz"), (200, {"status": "ok", "agent": "up"}))
        self.assertEqual({path: machine.read(path) for path in kept}, before)
        self.assertIn(b"Of the second version", machine.read("/etc/sandpiper/agent.toml"), "nobody had changed it")
        self.assertEqual(machine.access("/etc/sandpiper/agent.toml"), "600 root:root")
        self.assertFalse(machine.has("/etc/systemd/system/multi-user.target.wants/" + API), "the operator had disabled it")
        # As systemd orders it.
        self.assertEqual((api.stop(), agent.stop()), (0, 0))
        self.start()
        self.assertEqual(get("/v1/sandboxes", key), (200, {"sandboxes": []}))

    def test_a_removal_keeps_data_and_settings_and_a_purge_nothing(self):
        machine = self.machine
        machine.install(self.first)
        agent, api = self.start()
        key = self.key()
        self.assertEqual((api.stop(), agent.stop()), (0, 0))

        machine.run("dpkg", "--remove", "sandpiper")

        for path in ("/usr/bin/sandpiper", "/usr/lib/sandpiper", "/usr/lib/systemd/system/" + AGENT):
            self.assertFalse(machine.has(path), path)
        for path in ("/etc/sandpiper/agent.toml", "/var/lib/sandpiper/record.key", "/var/lib/sandpiper/api/sandpiper.db"):
            self.assertTrue(machine.has(path), path)

        machine.install(self.first)
        agent, api = self.start()
        self.assertEqual(get("/v1/sandboxes", key), (200, {"sandboxes": []}))
        self.assertEqual((api.stop(), agent.stop()), (0, 0))

        machine.append("/etc/sandpiper/wildcard.pem", "the operator's\n")
        machine.run("dpkg", "--purge", "sandpiper")

        for path in ("/var/lib/sandpiper", "/run/sandpiper", "/etc/sandpiper/agent.toml", "/etc/sandpiper/egress-profiles.json",
                     "/etc/systemd/system/" + AGENT, "/etc/systemd/system/multi-user.target.wants/" + AGENT,
                     "/var/lib/systemd/deb-systemd-helper-enabled/" + AGENT + ".dsh-also"):
            self.assertFalse(machine.has(path), path)
        self.assertTrue(machine.has("/etc/sandpiper/wildcard.pem"))
        self.assertEqual(machine.run("dpkg-query", "--show", "--showformat", "${db:Status-Status}", "sandpiper", check=False)
                         .count("installed"), 0)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIPPED: the package on a machine: this is not root", file=sys.stderr)
        sys.exit(0)
    enter_namespaces()
    unittest.main(verbosity=2)
