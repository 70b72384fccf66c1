#!/usr/bin/env python3
"""The package under systemd, with guests: installed, upgraded while a sandbox runs, removed, installed again, purged.

    SANDPIPER_PROGRAMS=FOLDER packaging/tests/upgrade.py

As root. It makes two packages of this checkout and goes on with them where guests run (scripts/host). There systemd is process 1 of a
container (systemd-nspawn) that has this machine's files under an overlay: it reads the units, starts what they say as they say it, and
dpkg's scripts find it. With SANDPIPER_KERNEL=FILE the packages have that guest kernel.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.environ.get("SANDPIPER_CACHE", "/var/cache/sandpiper")
URL = "http://127.0.0.1:7070"
AGENT, API = "sandpiper-agent.service", "sandpiper-api.service"
# Guests, and systemd, are emulated where this machine's own KVM cannot run them.
PATIENCE = 240
# Writes a number every so often, for as long as its machine runs: how one sees that it never stopped.
BEAT = "n=0; while sleep 0.5; do n=$((n + 1)); echo $n > beat; done"


class Container:
    """A machine on which nothing of Sandpiper was ever installed, and whose process 1 is systemd."""

    def __init__(self):
        self.area = tempfile.mkdtemp(prefix="sandpiper-upgrade-")
        # A disk, where guests are: files of sandboxes are large.
        self.state = tempfile.mkdtemp(prefix="upgrade-", dir="/var/lib/sandpiper")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "upgrade", self.area], check=True)
        self.root = self.area + "/root"
        for name in ("upper", "work", "root"):
            os.mkdir(os.path.join(self.area, name))
        options = "lowerdir=/,upperdir=%s/upper,workdir=%s/work" % (self.area, self.area)
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", self.root], check=True)
        # It would keep services from being started.
        if os.path.exists(self.root + "/usr/sbin/policy-rc.d"):
            os.remove(self.root + "/usr/sbin/policy-rc.d")
        shutil.rmtree(self.root + "/etc/sandpiper", ignore_errors=True)
        self.console = open(self.area + "/console", "w+")
        # One that nobody else is in: only there may systemd have controllers.
        self.cgroup = "/sys/fs/cgroup/" + os.path.basename(self.area)
        os.mkdir(self.cgroup)
        # What nspawn takes from a container by default is what a host has: writable settings of the kernel, all system calls.
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--directory=" + self.root, "--boot", "--register=no", "--keep-unit", "--capability=all",
             "--private-network", "--link-journal=no", "--console=pipe", "--bind=/dev/kvm", "--bind=/dev/net/tun",
             "--bind=%s:/var/lib/sandpiper" % self.state, "systemd.mask=postgresql.service"],
            stdin=subprocess.DEVNULL, stdout=self.console, stderr=self.console, preexec_fn=self.enter_cgroup,
            env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1", "SYSTEMD_SECCOMP": "0"})
        try:
            self.first = self.wait("systemd has started", self.booted)
        except AssertionError:
            self.close()
            raise

    def enter_cgroup(self):
        with open(self.cgroup + "/cgroup.procs", "w") as file:
            file.write("0")

    def booted(self):
        found = subprocess.run(["pgrep", "--parent", str(self.process.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
        self.first = found[0] if found else None
        return self.first and self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded") and self.first

    def wait(self, what, asked):
        """Asks until it is so; the answer."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if answer := asked():
                return answer
            time.sleep(0.5)
        self.console.seek(0)
        raise AssertionError("not within %d s: %s\n%s" % (PATIENCE, what, self.console.read()[-2000:]))

    def run(self, *argv, check=True, environment=None):
        """Runs a command there; its output."""
        ran = subprocess.run(["nsenter", "--all", "--target", self.first, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=PATIENCE * 2,
                             env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **(environment or {})})
        if check and ran.returncode != 0:
            said = self.run("journalctl", "--no-pager", "--lines=40", "--unit", AGENT, "--unit", API, check=False)
            raise AssertionError("%s: exit status %d\n%s%s\n%s" % (shlex.join(argv), ran.returncode, ran.stdout, ran.stderr, said))
        return ran.stdout

    def install(self, package):
        """dpkg -i, as a script would; until the API has the agent."""
        shutil.copy(package, self.root + "/root/package.deb")
        self.run("dpkg", "-i", "/root/package.deb")
        self.wait("agent and API respond", self.responds)

    def responds(self):
        return '"up"' in self.run("curl", "-s", URL + "/healthz", check=False)

    def main_pid(self, unit):
        return self.run("systemctl", "show", "--property=MainPID", "--value", unit).strip()

    def monitors(self):
        """Process ids of monitors, as the container counts them."""
        return self.run("pgrep", "-x", "sandpiper-vmm", check=False).split()

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.console.close()
        subprocess.run(["umount", "--lazy", "--recursive", self.area], check=True)
        os.rmdir(self.area)
        shutil.rmtree(self.state)
        self.wait_until_empty()
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            os.rmdir(folder)

    def wait_until_empty(self):
        """Its last processes have been killed, and take a moment."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(self.cgroup + "/cgroup.events") as file:
                if "populated 0" in file.read():
                    return
            time.sleep(0.2)


class Upgrade(unittest.TestCase):
    first = second = image = None

    def setUp(self):
        self.machine = Container()
        self.addCleanup(self.machine.close)
        self.key = None

    def sandpiper(self, *argv, check=True):
        return self.machine.run("sandpiper", *argv, check=check, environment={"SANDPIPER_URL": URL, "SANDPIPER_API_KEY": self.key or ""})

    def sh(self, sandbox, command):
        """What a command in a sandbox prints."""
        return self.sandpiper("exec", sandbox, "--", "sh", "-c", command).strip()

    def call(self, method, path, body):
        said = self.machine.run("curl", "--silent", "--show-error", "--fail-with-body", "-X", method, URL + path, "-H",
                                "Authorization: Bearer " + self.key, "-H", "Content-Type: application/json", "-d", json.dumps(body))
        return json.loads(said)

    def create(self, **fields):
        return self.call("POST", "/v1/sandboxes", {"template": "base", "memory_mb": 256, "cpu": 1, "timeout": 7200, **fields})["id"]

    def beats(self, sandbox):
        """Once it has gone on: whose it is, and how far."""
        before = int(self.sh(sandbox, "cat beat"))
        self.machine.wait("the program in %s goes on" % sandbox, lambda: int(self.sh(sandbox, "cat beat") or 0) > before)
        return self.sh(sandbox, "cat /proc/sys/kernel/random/boot_id"), before

    def test_a_sandbox_runs_on_through_an_upgrade_and_is_there_again_after_a_removal(self):
        machine = self.machine
        machine.install(self.first)
        for unit in (AGENT, API):
            self.assertEqual(machine.run("systemctl", "is-active", unit).strip(), "active")
            score = re.search(r"Overall exposure level for \S+: ([0-9.]+)", machine.run("systemd-analyze", "security", "--no-pager", unit))
            print("%s: exposure %s under systemd" % (unit, score[1]), flush=True)
        self.sandpiper("template", "import", "--slug", "base", self.image)
        made = machine.run("sandpiper-api", "key", "create", "--config", "/etc/sandpiper/api.toml", "--team", "acme", "--plan", "pro",
                           "--capability", "write")
        self.key = re.search("spk_[0-9a-f]+", made)[0]
        running, paused = self.create(), self.create()
        self.sh(running, "setsid sh -c %s > /dev/null 2>&1 < /dev/null & sleep 1; cat beat || sleep 1" % shlex.quote(BEAT))
        self.sh(paused, "echo of before > note")
        self.sandpiper("pause", paused)
        checkpoint = self.sandpiper("checkpoint", "create", running).split()[0]
        boot, beat = self.beats(running)
        before = {unit: machine.main_pid(unit) for unit in (AGENT, API)}
        monitors = machine.monitors()

        machine.install(self.second)

        self.assertIn("~test2", machine.run("dpkg-query", "--show", "sandpiper"))
        for unit, pid in before.items():
            self.assertNotEqual(machine.main_pid(unit), pid, "%s was not started anew" % unit)
        self.assertTrue(set(machine.monitors()) & set(monitors), "none of the monitors goes on")
        self.assertEqual(self.call("GET", "/v1/sandboxes/" + running, None)["state"], "ready")
        again, further = self.beats(running)
        self.assertEqual(again, boot)
        self.assertGreater(further, beat)
        # Its network is the one that it had: it is kept from what it is not to reach, and that is said.
        self.call("PUT", "/v1/sandboxes/%s/network" % running, {"allow_internet_access": False})
        self.sandpiper("exec", running, "--", "timeout", "5", "bash", "-c", "echo > /dev/tcp/198.51.100.7/22", check=False)
        machine.wait("the denied connection is told of", lambda: "198.51.100.7" in self.sandpiper("net-log", running))
        self.sandpiper("resume", paused)
        self.assertEqual(self.sh(paused, "cat note"), "of before")
        restored = self.sandpiper("checkpoint", "restore", checkpoint).split()[0]
        self.assertGreater(int(self.sh(restored, "cat beat")), 0)
        self.sandpiper("rm", restored, paused)

        # An agent that is killed is started again by systemd, and finds the sandbox too. The API says for a moment that the one
        # before is up.
        killed = machine.main_pid(AGENT)
        machine.run("systemctl", "kill", "--signal=KILL", AGENT)
        machine.wait("another agent is started", lambda: machine.main_pid(AGENT) not in ("0", killed))
        machine.wait("the agent is back", machine.responds)
        self.assertEqual(self.beats(running)[0], boot)

        machine.run("dpkg", "--remove", "sandpiper")

        self.assertEqual(machine.monitors(), [])
        machine.install(self.first)
        self.assertEqual(self.call("GET", "/v1/sandboxes/" + running, None)["state"], "stopped")
        self.sandpiper("resume", running)
        self.assertEqual(self.beats(running)[0], boot)

        machine.run("dpkg", "--purge", "sandpiper")

        self.assertEqual(machine.monitors(), [])
        self.assertEqual(os.listdir(machine.state), [])
        self.assertEqual(machine.run("ip", "netns", "list").strip(), "")
        self.assertEqual([name for name in machine.run("ls", "/sys/fs/cgroup").split() if name.startswith("sandpiper")], [])


def make_packages(folder):
    """Two versions of this checkout's package."""
    import package
    first = package.built("0.1.0~test1", folder)
    return first, package.changed(first, "0.1.0~test2", lambda tree: None)


def main():
    if os.geteuid() != 0:
        print("SKIPPED: the package under systemd: this is not root", file=sys.stderr)
        return 0
    if len(sys.argv) == 1:
        folder = CACHE + "/upgrade"
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        image = subprocess.run([ROOT + "/scripts/base-template"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        subprocess.run(["bash", "-c", ". scripts/lib/common.sh && need_packages systemd-container"], cwd=ROOT, check=True)
        ran = subprocess.run([ROOT + "/scripts/host", "--", os.path.realpath(__file__), *make_packages(folder), image], check=False)
        shutil.rmtree(folder)
        return ran.returncode
    Upgrade.first, Upgrade.second, Upgrade.image = sys.argv[1:]
    return not unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
