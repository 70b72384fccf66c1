"""The machine's side of the nested host: starts it, talks to it, ends it. Called by `scripts/host`, which has the help.

    client.py run IMAGE CHECKOUT KEEP FORWARDS ARGUMENT...    KEEP may be empty; FORWARDS: PORT:PORT,...
    client.py stop | status | forward FORWARDS

Everything of a running nested host is in the run directory (mode 0700):

    lock          held while one is started or ended
    alive         locked by QEMU itself for as long as it lives: no pid can be mistaken
    state.json    pid, port, what it was made from
    token         the secret of the command channel
    qmp.sock      QEMU's monitor
    console.log   what the nested host printed; qemu.log, virtiofsd.log: what those two had to say
"""

import fcntl
import hashlib
import json
import os
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import channel  # noqa: E402

CACHE = os.environ.get("SANDPIPER_CACHE", "/var/cache/sandpiper")
FOLDER = CACHE + "/nested"
# One nested host per cache: another cache (a test of these scripts, say) has its own.
RUN = "/run/sandpiper-nested" + ("" if CACHE == "/var/cache/sandpiper" else "-" + hashlib.sha256(CACHE.encode()).hexdigest()[:8])
DISK = FOLDER + "/disk.ext4"
DISK_SIZE = 20 << 30
START_SECONDS = 300
# A guest that was busy for this long would be of no use either.
ANSWER_SECONDS = 120
# Variables that name things which only exist on the machine, or belong to the shell that called.
NOT_PASSED = {"_", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR",
              "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY",
              "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "MAKEFLAGS", "MFLAGS"}


class Refused(Exception):
    """The nested host took the connection and said no, or its QEMU did."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Unreachable(Exception):
    """Nobody answered: nothing was started."""


def say(text):
    print("\033[2m[%s]\033[0m %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


def die(text, status=1):
    print("error: " + text, file=sys.stderr, flush=True)
    sys.exit(status)


# --- its life -------------------------------------------------------------------------------------------------------

def alive():
    """Whether a QEMU holds its lock."""
    try:
        fd = os.open(RUN + "/alive", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def state():
    """What the running nested host wrote about itself, None when there is none."""
    if not alive():
        return None
    try:
        with open(RUN + "/state.json") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


class Lock:
    def __enter__(self):
        os.makedirs(RUN, mode=0o700, exist_ok=True)
        self.fd = os.open(RUN + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def __exit__(self, *_):
        os.close(self.fd)


def packages():
    """Changes when Debian packages are installed: the root file system is cached by a running nested host."""
    try:
        return os.stat("/var/lib/dpkg/status").st_mtime_ns
    except OSError:
        return 0


def ensure(image, keep):
    """The state of a running nested host that matches this checkout, started if need be."""
    now = state()
    if now and now["image"] == image and now["packages"] == packages():
        return now
    with Lock():
        now = state()
        if now:
            why = "its scripts changed" if now["image"] != image else "packages were installed"
            if now["image"] == image and now["packages"] == packages():
                return now
            if not ask(now, "poweroff", if_idle=True).get("busy"):
                say("nested host: %s, starting it again" % why)
                end(now)
            else:
                say("nested host: %s, but other commands run there; using it as it is (scripts/host --restart ends them)" % why)
                return now
        return start(image, keep)


def start(image, keep):
    began = time.monotonic()
    say("nested host: starting (QEMU without hardware acceleration; commands run 20 to 50 times slower than here)")
    for name in ("state.json", "qmp.sock", "virtiofs.sock"):
        if os.path.exists(RUN + "/" + name):
            os.unlink(RUN + "/" + name)
    os.makedirs(FOLDER + "/out", exist_ok=True)
    end_unfinished()
    prepare_disk()
    put(RUN + "/token", secrets.token_hex(32))
    put(RUN + "/config.json", json.dumps({"keep": keep}))
    # Locked here, kept by QEMU through the inherited descriptor. A caller's look at it may hold it for a moment.
    alive_fd = os.open(RUN + "/alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive_fd, fcntl.LOCK_EX)
    console = RUN + "/console.log"
    open(console, "w").close()

    shares = subprocess.Popen(
        ["/usr/lib/qemu/virtiofsd", "--socket-path=" + RUN + "/virtiofs.sock", "-o", "source=/", "-o", "sandbox=chroot",
         "-o", "cache=auto", "-o", "timeout=0", "-o", "flock", "-o", "xattr", "-o", "log_level=warn"],
        cwd="/", stdin=subprocess.DEVNULL, stdout=open(RUN + "/virtiofsd.log", "w"), stderr=subprocess.STDOUT,
        start_new_session=True)
    put(RUN + "/virtiofsd.pid", str(shares.pid))
    wait_for(lambda: os.path.exists(RUN + "/virtiofs.sock"), 30, shares, "virtiofsd", RUN + "/virtiofsd.log")
    packages_before = packages()
    qemu = subprocess.Popen(qemu_command(image, console), pass_fds=[alive_fd], cwd="/", stdin=subprocess.DEVNULL,
                            stdout=open(RUN + "/qemu.log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
    put(RUN + "/qemu.pid", str(qemu.pid))
    os.close(alive_fd)
    try:
        def ready():
            with open(console, errors="replace") as file:
                return "nested host: ready" in file.read()
        wait_for(lambda: os.path.exists(RUN + "/qmp.sock"), 30, qemu, "QEMU", RUN + "/qemu.log")
        port = forward("0:2222")[0]
        wait_for(ready, START_SECONDS, qemu, "the nested host", console)
    except BaseException:
        qemu.kill()
        shares.kill()
        raise
    now = {"pid": qemu.pid, "port": port, "image": image, "packages": packages_before, "started": time.time(), "forwards": {}}
    put(RUN + "/state.json", json.dumps(now))
    say("nested host: ready after %.1f s" % (time.monotonic() - began))
    return now


def end_unfinished():
    """Kills what a starter that was killed itself left: a QEMU without a state, a virtiofsd without a QEMU."""
    for name in ("qemu", "virtiofsd"):
        try:
            with open("%s/%s.pid" % (RUN, name)) as file:
                pid = int(file.read())
        except (OSError, ValueError):
            continue
        while is_ours(pid, name):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def is_ours(pid, name):
    """Whether the pid is not another process's by now: only ours has the run directory among its arguments."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            command = file.read()
    except OSError:
        return False
    return name.encode() in command and RUN.encode() + b"/" in command


def qemu_command(image, console):
    cpus = max(2, min(8, os.cpu_count() or 2))
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) // 1024
    # Taken page by page as it is used.
    memory = min(8192, total // 2)
    arguments = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "no_timer_check", "random.trust_cpu=on", "tsc=reliable",
                 "sandpiper.run=" + RUN, "sandpiper.modules=" + os.path.realpath(image + "/modules")]
    return ["qemu-system-x86_64", "-name", "sandpiper-nested", "-M", "q35,memory-backend=memory", "-accel", "tcg,thread=multi",
            "-cpu", "max,+svm,+npt", "-smp", str(cpus), "-m", str(memory),
            "-object", "memory-backend-memfd,id=memory,size=%dM,share=on" % memory,
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-kernel", image + "/vmlinux", "-initrd", image + "/initrd", "-append", " ".join(arguments),
            "-chardev", "file,id=console,path=" + console, "-serial", "chardev:console",
            "-qmp", "unix:%s/qmp.sock,server=on,wait=off" % RUN,
            "-virtfs", "local,path=/,mount_tag=root,security_model=passthrough,readonly=on,multidevs=remap",
            "-chardev", "socket,id=shares,path=%s/virtiofs.sock" % RUN,
            "-device", "vhost-user-fs-pci,chardev=shares,tag=machine,queue-size=1024",
            "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
            "-drive", "file=%s,format=raw,if=none,id=disk,cache=unsafe,aio=threads,discard=unmap" % DISK,
            "-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]


def wait_for(condition, seconds, process, name, log):
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            with open(log, errors="replace") as file:
                tail = "".join(file.readlines()[-20:])
            what = "ended" if process.poll() is not None else "was not ready after %d s" % seconds
            die("%s %s. The end of %s:\n%s" % (name, what, log, tail))
        time.sleep(0.02)


def put(path, text):
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def prepare_disk():
    """The file system behind /var/lib/sandpiper: kept while it is whole, so that imported templates stay."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    mark = FOLDER + "/disk.boot"
    try:
        # QEMU writes without flushing: after a crash of the machine nothing in the file can be trusted.
        with open(mark) as file:
            kept = file.read() == boot and os.stat(DISK).st_size == DISK_SIZE
        kept = kept and subprocess.run(["e2fsck", "-p", DISK], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode < 4
    except FileNotFoundError:
        kept = False
    if kept:
        return
    with open(DISK, "wb") as file:
        file.truncate(DISK_SIZE)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,nodiscard", "-L", "sandpiper", DISK], check=True)
    put(mark, boot)


def end(now):
    """Waits for QEMU's end, with its power cut after a while."""
    until = time.monotonic() + 20
    while alive() and time.monotonic() < until:
        time.sleep(0.05)
    if alive():
        try:
            monitor("quit")
        except OSError:
            pass
        until = time.monotonic() + 10
        while alive() and time.monotonic() < until:
            time.sleep(0.05)
    end_unfinished()
    for name in ("state.json", "token", "config.json", "qmp.sock", "virtiofs.sock", "qemu.pid", "virtiofsd.pid"):
        if os.path.exists(RUN + "/" + name):
            os.unlink(RUN + "/" + name)


# --- talking to it --------------------------------------------------------------------------------------------------

def connect(now, request):
    """A connection on which the request was taken; the answer, and the decoder with what came after it."""
    try:
        with open(RUN + "/token") as file:
            request["token"] = file.read()
        sock = socket.create_connection(("127.0.0.1", now["port"]), timeout=ANSWER_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(channel.frame(b"H", json.dumps(request).encode()))
        decoder = channel.Decoder()
        while True:
            data = sock.recv(channel.CHUNK)
            if not data:
                raise Unreachable("it closed the connection")
            decoder.push(data)
            first = next(decoder.frames(), None)
            if first:
                break
    except TimeoutError:
        raise Unreachable("no answer in %d s" % ANSWER_SECONDS)
    except OSError as error:
        raise Unreachable(str(error))
    sock.settimeout(None)
    kind, payload = first
    answer = json.loads(payload)
    if kind == b"F":
        raise Refused(answer["status"], answer["message"])
    return sock, answer, decoder


def ask(now, operation, **rest):
    try:
        sock, answer, _ = connect(now, dict(rest, op=operation))
        sock.close()
        return answer
    except Unreachable:
        return {}


def monitor(command):
    """One command of QEMU's human monitor; its output."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(RUN + "/qmp.sock")
        with sock.makefile("rw") as lines:
            lines.readline()
            for message in ({"execute": "qmp_capabilities"},
                            {"execute": "human-monitor-command", "arguments": {"command-line": command}}):
                lines.write(json.dumps(message) + "\n")
                lines.flush()
                answer = {}
                while "return" not in answer and "error" not in answer:
                    answer = json.loads(lines.readline())
            return answer.get("return", "")


def forward(spec):
    """Forwards a loopback port of the machine (0: any) into the nested host; (machine's port, its port)."""
    ours, _, theirs = spec.partition(":")
    ours, theirs = int(ours), int(theirs or ours)
    for _ in range(20):
        port = ours
        if port == 0:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
        problem = monitor("hostfwd_add net tcp:127.0.0.1:%d-10.0.2.15:%d" % (port, theirs)).strip()
        if not problem:
            return port, theirs
        if ours:
            break
    raise Refused(1, "port %d of this machine cannot be forwarded: %s" % (port, problem))


# --- one command ----------------------------------------------------------------------------------------------------

class Writer(threading.Thread):
    """Writes one output stream to its descriptor, at that reader's pace."""

    def __init__(self, command, stream):
        super().__init__(daemon=True)
        self.command, self.stream = command, stream
        # Bounded by the stream's window: the server sends no more than was acknowledged.
        self.queue = queue.SimpleQueue()

    def run(self):
        broken = False
        while (data := self.queue.get()) is not None:
            rest = memoryview(data)
            while rest and not broken:
                try:
                    rest = rest[os.write(self.stream, rest):]
                except BlockingIOError:
                    time.sleep(0.002)
                except OSError:
                    broken = True
                    self.command.send(channel.frame(b"P", bytes([self.stream])))
            if not broken:
                self.command.send(channel.credit(self.stream, len(data)))


class Command:
    def __init__(self, sock, decoder):
        self.sock, self.decoder = sock, decoder
        self.lock = threading.Lock()
        self.allowed = threading.Condition()
        self.window = 0

    def send(self, data):
        try:
            with self.lock:
                self.sock.sendall(data)
        except OSError:
            pass  # the reader sees the end too, and says so

    def read_input(self):
        while True:
            with self.allowed:
                while self.window == 0:
                    self.allowed.wait()
                count = min(self.window, channel.CHUNK)
            try:
                data = os.read(0, count)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            except OSError:
                data = b""
            with self.allowed:
                self.window -= len(data)
            self.send(channel.frame(b"I", data))
            if not data:
                return

    def run(self):
        """Until the command ends; its exit status."""
        writers = {1: Writer(self, 1), 2: Writer(self, 2)}
        for writer in writers.values():
            writer.start()
        threading.Thread(target=self.read_input, daemon=True).start()
        # In a thread, so that the main one, which runs signal handlers, never holds the lock that they need.
        ended = queue.SimpleQueue()
        threading.Thread(target=self.receive, args=(writers, ended), daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: self.send(channel.frame(b"S", bytes([number]))))
        status = ended.get()
        for writer in writers.values():
            writer.queue.put(None)
            writer.join()
        if status is None:
            die("the nested host ended while the command ran; what it printed last is in %s/console.log" % RUN, 125)
        return status

    def receive(self, writers, ended):
        kinds = {b"O": 1, b"E": 2}
        status = None
        try:
            while status is None:
                # First what came together with the answer to the request.
                for kind, payload in self.decoder.frames():
                    if kind in kinds:
                        writers[kinds[kind]].queue.put(payload)
                    elif kind == b"C":
                        with self.allowed:
                            self.window += channel.CREDIT.unpack(payload)[1]
                            self.allowed.notify()
                    elif kind == b"X":
                        status = payload[0]
                if status is None:
                    data = self.sock.recv(channel.CHUNK * 4)
                    if not data:
                        break
                    self.decoder.push(data)
        except OSError:
            pass
        ended.put(status)


def run(image, checkout, keep, forwards, argv):
    detach = os.environ.get("SANDPIPER_HOST_DETACH") == "1"
    env = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    env["SANDPIPER_NESTED"] = "1"
    cwd = os.getcwd()
    shares = [os.path.realpath(path) for path in (checkout, os.environ.get("CARGO_TARGET_DIR"), CACHE, cwd) if path]
    request = {"op": "run", "argv": argv, "cwd": cwd, "env": env, "shares": shares, "detach": detach}
    if keep is not None:
        request["keep"] = keep
    for attempt in range(3):
        now = ensure(image, 900 if keep is None else keep)
        add_forwards(forwards)
        try:
            sock, _, decoder = connect(now, dict(request))
            return Command(sock, decoder).run()
        except Unreachable as error:
            # It was just ending for idleness, or it hangs: nothing of the command has run.
            with Lock():
                if state() and state()["pid"] == now["pid"]:
                    say("nested host: %s, starting it again" % error)
                    end(now)
    die("the nested host does not answer; see %s/console.log" % RUN, 125)


# --- the rest -------------------------------------------------------------------------------------------------------

def stop():
    with Lock():
        now = state()
        if now is None:
            say("nested host: not running")
            return
        ask(now, "poweroff")
        end(now)
        say("nested host: stopped")


def status():
    now = state()
    if now is None:
        print("nested host: not running")
        return 3
    answer = ask(now, "status")
    print("nested host: running, pid %d, console %s/console.log" % (now["pid"], RUN))
    if not answer:
        print("  does not answer: scripts/host --restart")
        return 1
    keep = "for ever" if not answer["keep"] else "%d s" % answer["keep"]
    print("  up %d s, stays %s when idle" % (answer["uptime"], keep))
    for ours, theirs in sorted(now["forwards"].items()):
        print("  127.0.0.1:%s -> its port %s" % (ours, theirs))
    for command in answer["commands"]:
        print("  runs: " + command)
    if answer["leftovers"]:
        print("  %d detached processes" % answer["leftovers"])
    return 0


def add_forwards(forwards):
    for spec in forwards.split(",") if forwards else ():
        with Lock():
            now = state()
            if now is None:
                die("the nested host is not running; a command starts it: scripts/host --forward %s -- true" % spec)
            ours, _, theirs = spec.partition(":")
            if now["forwards"].get(ours) == int(theirs or ours):
                continue
            ours, theirs = forward(spec)
            connect(now, {"op": "publish", "port": theirs})[0].close()
            now["forwards"][str(ours)] = theirs
            put(RUN + "/state.json", json.dumps(now))
            say("nested host: 127.0.0.1:%d -> its port %d" % (ours, theirs))


def main(operation, *arguments):
    try:
        if operation == "run":
            image, checkout, keep, forwards, *argv = arguments
            return run(image, checkout, int(keep) if keep else None, forwards, argv)
        return {"stop": stop, "status": status, "forward": add_forwards}[operation](*arguments)
    except Refused as error:
        die(str(error), error.status)
    except Unreachable as error:
        die("the nested host does not answer (%s). Start it again: scripts/host --restart" % error)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
