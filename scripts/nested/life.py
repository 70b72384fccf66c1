"""The life of the nested host, seen from the machine: starting it, finding it, talking to it, ending it.

Everything of a running nested host is in the run directory (mode 0700):

    lock          held while one is started or ended
    alive         locked by QEMU itself for as long as it lives: no pid can be mistaken
    state.json    pid, port, what it was made from
    token         the secret of the command channel
    qmp.sock      QEMU's monitor
    console.log   what the nested host printed; qemu.log, virtiofsd.log: what those two had to say

The consoles of those that ended are in $SANDPIPER_CACHE/nested/consoles, the last twenty.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
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
KEPT_CONSOLES = 20
# As for nice(1): three times the share of what runs beside it.
PREFERENCE = -5


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
    try:
        return boot(image, keep)
    except SystemExit:
        # In emulation a kernel that starts now and then falls over its own patching. Nothing has run there yet.
        say("nested host: starting it a second time; the console before is in %s/consoles" % FOLDER)
        return boot(image, keep)


def boot(image, keep):
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
    console = RUN + "/console.log"
    keep_console(console)
    open(console, "w").close()

    # Pages are kept from one opening of a file to the next, or each program that starts would take its code from all others of
    # it. Time and size are asked for at each look: what the machine changes is seen.
    shares = subprocess.Popen(
        ["/usr/lib/qemu/virtiofsd", "--socket-path=" + RUN + "/virtiofs.sock", "-o", "source=/", "-o", "sandbox=chroot",
         "-o", "cache=always", "-o", "timeout=0", "-o", "flock", "-o", "xattr", "-o", "log_level=warn"],
        cwd="/", stdin=subprocess.DEVNULL, stdout=open(RUN + "/virtiofsd.log", "w"), stderr=subprocess.STDOUT,
        start_new_session=True)
    wait_for(lambda: os.path.exists(RUN + "/virtiofs.sock"), 30, shares, "virtiofsd", RUN + "/virtiofsd.log")
    packages_before = packages()
    # Locked here, kept by QEMU through the inherited descriptor. A caller's look at it may hold it for a moment.
    alive_fd = os.open(RUN + "/alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive_fd, fcntl.LOCK_EX)
    qemu = subprocess.Popen(qemu_command(image, console), pass_fds=[alive_fd], cwd="/", stdin=subprocess.DEVNULL,
                            stdout=open(RUN + "/qemu.log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
    os.close(alive_fd)
    prefer(qemu)
    prefer(shares)
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


def prefer(process):
    """Lets a process of a session of its own have the processors before other sessions: guests are 20 to 50 times slower
    than what runs beside them, and waited for longest."""
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, PREFERENCE)
        # A kernel that groups processes by session weighs the groups; one that does not has no such file.
        if os.path.exists("/proc/%d/autogroup" % process.pid):
            with open("/proc/%d/autogroup" % process.pid, "w") as group:
                group.write(str(PREFERENCE))
    except PermissionError:
        # As in most containers, also for root: it only takes longer.
        pass


def keep_console(console):
    """Puts the console of the nested host before aside: why it ended may stand in it."""
    folder = FOLDER + "/consoles"
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(console):
        ended = time.strftime("%Y%m%d-%H%M%S", time.gmtime(os.stat(console).st_mtime))
        # Another file system, perhaps.
        shutil.move(console, "%s/%s.log" % (folder, ended))
    for old in sorted(os.listdir(folder))[:-KEPT_CONSOLES]:
        os.unlink(folder + "/" + old)


def end_unfinished():
    """Kills a QEMU and a virtiofsd of this run directory that no state tells of.

    Their starter was killed before it could write one, or somebody emptied the directory. They are known by the paths
    among their arguments, which nobody else's processes have.
    """
    while pids := ours():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def ours():
    marks = (("unix:%s/qmp.sock," % RUN).encode(), ("--socket-path=%s/virtiofs.sock" % RUN).encode())
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % name, "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        if any(argument.startswith(marks) for argument in arguments):
            found.append(int(name))
    return found


def qemu_command(image, console):
    # One more than are used: server.py says why.
    cpus = max(2, min(8, os.cpu_count() or 2)) + 1
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) // 1024
    # Taken page by page as it is used.
    memory = os.environ.get("SANDPIPER_HOST_MEMORY") or str(min(8192, total // 2))
    if not memory.isdecimal() or not 1024 <= int(memory) <= total:
        raise SystemExit("SANDPIPER_HOST_MEMORY=%s: must be a number of MiB from 1024 to the %d of this machine" % (memory, total))
    memory = int(memory)
    arguments = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "no_timer_check", "random.trust_cpu=on", "tsc=reliable",
                 # Translated code is kept by its address: at random ones each process would be translated anew.
                 "norandmaps",
                 # Emulation now and then loses a processor for good, or a kernel's thread with the locks it holds: better an end
                 # that says so than a silence.
                 "oops=panic", "watchdog_thresh=30", "softlockup_panic=1", "softlockup_all_cpu_backtrace=1",
                 "sandpiper.run=" + RUN, "sandpiper.modules=" + os.path.realpath(image + "/modules")]
    # When the room for translated code is full, all of it is translated anew: 2 GiB are the most that QEMU takes.
    # Without ERMS kernels clear pages by words: in emulation its `rep stosb` goes byte by byte, 0.3 s for a huge page.
    return ["qemu-system-x86_64", "-name", "sandpiper-nested", "-M", "q35,memory-backend=memory", "-accel", "tcg,thread=multi,tb-size=2048",
            "-cpu", "max,+svm,+npt,-erms", "-smp", str(cpus), "-m", str(memory),
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
    for name in ("state.json", "token", "config.json", "qmp.sock", "virtiofs.sock"):
        if os.path.exists(RUN + "/" + name):
            os.unlink(RUN + "/" + name)


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
