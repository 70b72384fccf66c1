"""PID 1 of the nested host: runs the commands that `scripts/host` sends and reaps what they leave.

It listens on the emulated network (QEMU forwards a port of the machine's loopback to it); whoever knows the token of the
run directory may use it. The first frame of a connection (see channel.py) names an operation:

    run       argv, env, cwd, shares, detach: runs a command; the connection lives as long as it does
    status    what is running
    keep      seconds: stay that long when idle (0: for ever)
    publish   port: connections to that port from outside also reach a server bound to 127.0.0.1
    poweroff  if_idle: ends the nested host, with `if_idle` only when nothing runs

A command runs in a process of this server for itself: see session.py.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

import channel
from session import COMMANDS, Session, libc, log, refuse, write

RUN = "/run/nested"
ADDRESS = ("10.0.2.15", 2222)
HELLO_SECONDS = 20
MS_BIND = 4096
MNT_DETACH = 2


class Shares:
    """Folders of the machine seen as they are now, writable, at their own paths.

    The root file system is cached for speed: what changes on the machine later may not show. A share is bound from a
    virtiofs mount that asks the machine at every look-up.
    """

    FRESH = "/run/nested/fresh"
    # Folders with a life of their own in the nested host; a share inside them is fine.
    OWN = {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys",
           "/tmp", "/usr", "/var", "/var/cache", "/var/lib", "/var/lib/sandpiper", "/var/tmp"}

    def __init__(self):
        self.bound = set()

    def add(self, path):
        path = os.path.normpath(path)
        if not path.startswith("/") or path in self.OWN or path.split("/")[1] in ("dev", "proc", "sys"):
            return
        if any(path == old or path.startswith(old + "/") for old in self.bound):
            return
        os.makedirs(self.FRESH, mode=0o700, exist_ok=True)
        mount("machine", self.FRESH, "virtiofs", 0)
        try:
            source = self.FRESH + path
            if not os.path.isdir(source):
                return
            os.makedirs(path, exist_ok=True)
            mount(source, path, None, MS_BIND)
            self.bound.add(path)
        finally:
            # The whole machine, writable, is no sight to leave around.
            libc.umount2(self.FRESH.encode(), MNT_DETACH)


def mount(source, target, kind, flags):
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "mount %s: %s" % (target, os.strerror(number)))


class Waiting:
    """A connection whose first frame has not arrived."""

    def __init__(self, sock):
        self.sock = sock
        self.decoder = channel.Decoder()
        self.until = time.monotonic() + HELLO_SECONDS


class Server:
    def __init__(self):
        with open(RUN + "/token") as file:
            self.token = file.read().strip()
        with open(RUN + "/config.json") as file:
            self.keep = json.load(file)["keep"]
        self.sessions = {}
        self.waiting = {}
        self.published = set()
        self.shares = Shares()
        self.started = self.idle_since = time.monotonic()
        self.count = 0
        # The network comes up beside this (see the script `devices`).
        while not os.path.exists(RUN + "/devices-ready"):
            time.sleep(0.02)
        self.listener = socket.create_server(ADDRESS, backlog=64)
        self.listener.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.listener, select.POLLIN)
        self.wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.poll.register(self.wake, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def serve(self):
        while True:
            for fd, _ in self.poll.poll(1000):
                if fd == self.listener.fileno():
                    self.accept()
                elif fd == self.wake:
                    os.read(self.wake, 4096)
                else:
                    self.hear(fd)
            self.reap()
            now = time.monotonic()
            for fd in [fd for fd, waiting in self.waiting.items() if now > waiting.until]:
                self.drop(fd)
            if self.sessions:
                self.idle_since = now
            elif self.keep and now - self.idle_since > self.keep:
                if leftovers():
                    # Something detached still works: look again later.
                    self.idle_since = now
                else:
                    log("idle, ending")
                    power_off()

    def accept(self):
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting[sock.fileno()] = Waiting(sock)
        self.poll.register(sock, select.POLLIN)

    def drop(self, fd):
        self.poll.unregister(fd)
        self.waiting.pop(fd).sock.close()

    def hear(self, fd):
        """Bytes of a connection that has not said what it wants."""
        waiting = self.waiting.get(fd)
        if waiting is None:
            return
        try:
            data = waiting.sock.recv(channel.CHUNK)
            waiting.decoder.push(data)
            hello = next(waiting.decoder.frames(), None) if data else None
        except (OSError, channel.ProtocolError):
            data = hello = None
        if not data:
            self.drop(fd)
        elif hello:
            try:
                self.dispatch(waiting, hello)
            except Exception as error:
                try:
                    refuse(waiting.sock, 125, "nested host: %s" % error)
                except OSError:
                    pass
            self.drop(fd)

    def dispatch(self, waiting, hello):
        kind, payload = hello
        request = json.loads(payload) if kind == b"H" else {}
        if not same(request.get("token", ""), self.token):
            return refuse(waiting.sock, 125, "the nested host does not know this token")
        operation = request.get("op")
        answer = {}
        if operation == "run":
            return self.start(waiting, request)
        elif operation == "status":
            answer = {"commands": sorted(self.sessions.values()), "leftovers": len(leftovers()) if not self.sessions else 0,
                      "uptime": int(time.monotonic() - self.started), "keep": self.keep}
        elif operation == "keep":
            self.keep = request["seconds"]
        elif operation == "publish":
            self.publish(int(request["port"]))
        elif operation == "poweroff":
            if request.get("if_idle") and (self.sessions or leftovers()):
                answer = {"busy": True}
        else:
            return refuse(waiting.sock, 125, "unknown operation %r" % operation)
        waiting.sock.sendall(channel.frame(b"A", json.dumps(answer).encode()))
        if operation == "poweroff" and not answer:
            waiting.sock.shutdown(socket.SHUT_WR)
            log("ending as asked")
            power_off()

    def publish(self, port):
        if port in self.published:
            return
        if not self.published:
            write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1")
            run_nft("add table ip nested; add chain ip nested in { type nat hook prerouting priority dstnat - 50; }")
        run_nft("add rule ip nested in iifname eth0 tcp dport %d dnat to 127.0.0.1" % port)
        self.published.add(port)

    def start(self, waiting, request):
        if "keep" in request:
            self.keep = request["keep"]
        for path in request["shares"]:
            self.shares.add(path)
        self.count += 1
        number = self.count
        pid = os.fork()
        if pid:
            self.sessions[pid] = " ".join(request["argv"])[:200]
            return
        status = 1
        try:
            self.listener.close()
            for other in self.waiting.values():
                if other is not waiting:
                    other.sock.close()
            Session(waiting, request, number).run()
            status = 0
        except BaseException as error:
            log("session %d: %r" % (number, error))
        finally:
            os._exit(status)

    def reap(self):
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.sessions.pop(pid, None)


def same(one, other):
    """Compares without telling by the time it takes how much was right."""
    from _operator import _compare_digest
    return isinstance(one, str) and _compare_digest(one.encode(), other.encode())


def run_nft(rules):
    read_end, write_end = os.pipe()
    pid = os.posix_spawnp("nft", ["nft", rules], dict(os.environ), file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 2)])
    os.close(write_end)
    text = os.read(read_end, 4096).decode(errors="replace")
    os.close(read_end)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("nft: " + text.strip())


def leftovers():
    """Processes that are neither this server, its sessions nor the kernel's."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    if file.read(1):
                        found.append(int(name))
            except OSError:
                pass
    return found


def power_off():
    for pid in leftovers():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    libc.umount2(b"/var/lib/sandpiper", 0)
    os.sync()
    write("/proc/sysrq-trigger", "o")
    while True:
        time.sleep(1)


def hold_machines():
    """Two virtual machines with a processor each, never run, kept for as long as this server lives; None without KVM.

    The first processor of its kind that comes and the last that goes make the kernel patch its own code: KVM's static keys
    for a processor with an interrupt controller that is off (one machine has it, and switches it off), for one without (the
    other), and for any at all. In software emulation that patching has crashed the nested host, with other processors in
    the middle of that code; with these always there it happens once, now, while nothing else runs.
    """
    try:
        kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
        vms = [fcntl.ioctl(kvm, 0xAE01, 0) for _ in range(2)]  # KVM_CREATE_VM
        fcntl.ioctl(vms[0], 0xAE60, 0)  # KVM_CREATE_IRQCHIP
        vcpus = [fcntl.ioctl(vm, 0xAE41, 0) for vm in vms]  # KVM_CREATE_VCPU
        registers = bytearray(312)  # struct kvm_sregs
        fcntl.ioctl(vcpus[0], 0x8138AE83, registers)  # KVM_GET_SREGS
        registers[273] &= ~0x08  # bit 11 of apic_base: the interrupt controller is enabled
        fcntl.ioctl(vcpus[0], 0x4138AE84, registers)  # KVM_SET_SREGS
        return kvm, vms, vcpus
    except OSError:
        return None


def leave_first_processor():
    """Keeps this server and all that it starts off processor 0.

    In QEMU's emulation every processor that restores floating-point state writes, without a lock, to a word of processor
    0's state (`cpu_clear_ignne`, of 7.2) that also says whether that processor is in a guest and whether it takes
    interrupts there. A processor 0 that runs guests now and then is told the wrong thing, and its kernel or its guest dies.
    """
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {0})


def main():
    leave_first_processor()
    # What a shell on the console would have; the output of this server goes to the console.
    os.environ.clear()
    os.environ.update({"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
    os.makedirs(COMMANDS, exist_ok=True)
    write("/sys/fs/cgroup/command/cgroup.subtree_control", "+cpu +memory +io +pids +cpuset")
    server = Server()
    machines = hold_machines()
    log("ready" if machines else "ready, but /dev/kvm makes no virtual machine")
    server.serve()


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        # PID 1 must not end silently: the kernel panics then, and with it QEMU ends.
        log("failed: %r" % error)
        sys.exit(1)
