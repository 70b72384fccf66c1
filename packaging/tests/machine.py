"""A machine to install packages on, and to throw away: this one's files under an overlay, with namespaces of its own.

    overlay of /  ─┬─ /proc, /sys, /run   its own; no cgroups, so that nothing of this machine's is found and taken for its own
                   ├─ /dev                this machine's
                   └─ network             a namespace with a loopback alone

It has no process 1 that is systemd. `Service` starts what a unit says, as far as its ExecStart, user, capabilities and environment
go, and nothing else of it.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

UNITS = "/usr/lib/systemd/system"
START_SECONDS = 60


def enter_namespaces():
    """Goes on in namespaces of its own. For the first line of a program: it is started anew."""
    if os.environ.get("SANDPIPER_IN_NAMESPACES"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    os.environ["SANDPIPER_IN_NAMESPACES"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc",
                          sys.executable, *sys.argv])


class Machine:
    """As if nothing of Sandpiper had ever been installed there."""

    def __init__(self):
        self.area = tempfile.mkdtemp(prefix="sandpiper-machine-")
        self.root = self.area + "/root"
        self.services = []
        # An overlay cannot have its upper files on another one, which / may be.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "machine", self.area], check=True)
        for name in ("upper", "work", "root"):
            os.mkdir(os.path.join(self.area, name))
        options = "lowerdir=/,upperdir=%s/upper,workdir=%s/work" % (self.area, self.area)
        for arguments in (["-t", "overlay", "-o", options, "overlay", self.root],
                          ["-t", "proc", "proc", self.root + "/proc"],
                          ["-t", "sysfs", "sysfs", self.root + "/sys"],
                          ["-t", "tmpfs", "-o", "mode=755", "run", self.root + "/run"],
                          ["--rbind", "/dev", self.root + "/dev"]):
            subprocess.run(["mount", *arguments], check=True)
        # The package under test may have been installed on this very machine.
        self.run("dpkg", "--purge", "--force-all", "sandpiper", check=False)
        for path in ("/var/lib/sandpiper", "/etc/sandpiper"):
            shutil.rmtree(self.root + path, ignore_errors=True)
        self.run("userdel", "sandpiper", check=False)

    def run(self, *argv, check=True):
        """Runs a command there, with no input: whoever asks a question gets no answer. Its output, both streams."""
        ran = subprocess.run(["chroot", self.root, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"})
        if check and ran.returncode != 0:
            raise AssertionError("%s: exit status %d\n%s" % (shlex.join(argv), ran.returncode, ran.stdout))
        return ran.stdout

    def install(self, package):
        """dpkg -i, as a script would."""
        shutil.copy(package, self.root + "/root/package.deb")
        return self.run("dpkg", "-i", "/root/package.deb")

    def has(self, path):
        return os.path.lexists(self.root + path)

    def read(self, path):
        with open(self.root + path, "rb") as file:
            return file.read()

    def append(self, path, text):
        with open(self.root + path, "a") as file:
            file.write(text)

    def access(self, path):
        """`mode owner:group`, by the names that the machine has for them."""
        return self.run("stat", "-c", "%a %U:%G", path).strip()

    def start(self, unit, before=()):
        """Starts the process of a unit; `before` are words before its command."""
        service = Service(self, unit, before)
        self.services.append(service)
        return service

    def close(self):
        for service in self.services:
            service.stop()
            service.log.close()
        subprocess.run(["umount", "--lazy", "--recursive", self.area], check=True)
        os.rmdir(self.area)


def settings(text):
    """Keys and values of a unit's text: a list for each key, which may be given more than once."""
    found = {}
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z]+)=(.*)$", line):
            found.setdefault(match[1], []).append(match[2])
    return found


class Service:
    """The process of a unit."""

    def __init__(self, machine, unit, before):
        self.machine, self.unit = machine, unit
        self.log = tempfile.TemporaryFile("w+")
        self.settings = settings(machine.read("%s/%s" % (UNITS, unit)).decode())
        only = lambda key, default: self.settings.get(key, [default])[0]
        capabilities = ["+" + name.lower().removeprefix("cap_") for name in only("CapabilityBoundingSet", "").split()]
        argv = ["chroot", machine.root, "setpriv", "--no-new-privs", "--bounding-set=" + ",".join(["-all", *capabilities])]
        if user := only("User", ""):
            argv += ["--reuid=" + user, "--regid=" + only("Group", user), "--init-groups", "--inh-caps=-all"]
        self.process = subprocess.Popen([*argv, *before, *shlex.split(only("ExecStart", ""))], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, umask=int(only("UMask", "0022"), 8),
                                        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})

    def wait_until(self, what, asked):
        """Asks until it is so; the answer. Fails when the process ends first, or after a while."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError("%s ended (%d) before %s\n%s" % (self.unit, self.process.returncode, what, self.said()))
            if answer := asked():
                return answer
            time.sleep(0.05)
        raise AssertionError("%s: not within %d s: %s\n%s" % (self.unit, START_SECONDS, what, self.said()))

    def is_running(self):
        return self.process.poll() is None

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """As systemd with KillMode=process: asks this one process to end; its exit status."""
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("%s did not end\n%s" % (self.unit, self.said()))
