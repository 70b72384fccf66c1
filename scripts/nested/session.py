"""One command in the nested host and the connection it belongs to.

Every command has a process of the server for itself, its session, which is the reaper of everything the command starts
(PR_SET_CHILD_SUBREAPER): when the connection ends, or the command does, the session kills all of it, daemons and
processes that moved to other cgroups included. What a detached command started stays and belongs to PID 1.
"""

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import time

import channel

COMMANDS = "/sys/fs/cgroup/command"
PR_SET_CHILD_SUBREAPER = 36
F_SETPIPE_SZ = 1031
# For a client that is gone without a word (it is on the same machine: its end arrives at once).
GOODBYE_SECONDS = 10

libc = ctypes.CDLL(None, use_errno=True)


def log(text):
    print("nested host:", text, flush=True)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def refuse(sock, status, message):
    sock.sendall(channel.frame(b"F", json.dumps({"status": status, "message": message}).encode()))


class Output:
    """One output stream: a pipe from the command, and how much of it the client takes now."""

    def __init__(self, kind, fd):
        self.kind, self.fd, self.window = kind, fd, channel.WINDOW


class Session:
    """One command and its connection."""

    def __init__(self, waiting, request, number):
        self.sock, self.decoder = waiting.sock, waiting.decoder
        self.request = request
        self.detach = bool(request.get("detach"))
        self.cgroup = "%s/%d" % (COMMANDS, number)
        self.out = bytearray()
        self.input = bytearray()
        self.input_ended = False
        self.pid = None
        self.status = None
        self.connected = True
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def run(self):
        if not self.spawn():
            return
        self.send(b"A", b"{}")
        self.out += channel.credit(0, channel.WINDOW)
        try:
            for kind, payload in self.decoder.frames():
                self.handle(kind, payload)
            while self.connected and not (self.status is not None and self.drained()):
                self.turn()
        finally:
            self.end()
        if self.connected:
            self.send(b"X", bytes([self.status]))
            self.say_goodbye()

    def spawn(self):
        """Starts the command; False when it cannot be, which the client has been told."""
        os.makedirs(self.cgroup, exist_ok=True)
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        failed, failed_end = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            self.become([ends[0][0], ends[1][1], ends[2][1]], failed_end)
        for fd in (ends[0][0], ends[1][1], ends[2][1], failed_end):
            os.close(fd)
        problem = os.read(failed, 4096)
        os.close(failed)
        if problem:
            os.waitpid(self.pid, 0)
            os.rmdir(self.cgroup)
            status, _, message = problem.decode(errors="replace").partition(" ")
            refuse(self.sock, int(status), message)
            self.say_goodbye()
            return False
        self.stdin = ends[0][1]
        self.outputs = {1: Output(b"O", ends[1][0]), 2: Output(b"E", ends[2][0])}
        for fd in (self.stdin, ends[1][0], ends[2][0]):
            os.set_blocking(fd, False)
            fcntl.fcntl(fd, F_SETPIPE_SZ, 1 << 18)
        return True

    def become(self, streams, failed):
        """In the child: turns into the command. Does not return."""
        argv = self.request["argv"]
        try:
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    try:
                        signal.signal(number, signal.SIG_DFL)
                    except OSError:
                        pass
            os.setsid()
            write(self.cgroup + "/cgroup.procs", "0")
            # Above what the machine's own shells have nothing is needed; below it, a server of many connections ends.
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 524288))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for target, fd in enumerate(streams):
                os.dup2(fd, target)
            os.umask(0o022)
            os.chdir(self.request["cwd"])
        except Exception as error:
            os.write(failed, ("125 nested host: %s" % error).encode())
            os._exit(125)
        try:
            os.execvpe(argv[0], argv, self.request["env"])
        except FileNotFoundError:
            os.write(failed, ("127 %s: no such program" % argv[0]).encode())
        except Exception as error:
            os.write(failed, ("126 cannot run %s: %s" % (argv[0], error)).encode())
        os._exit(127)

    def send(self, kind, payload):
        self.out += channel.frame(kind, payload)

    def turn(self):
        """Waits for something and does it."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        poll.register(self.sock, select.POLLIN | (select.POLLOUT if self.out else 0))
        if self.stdin is not None and (self.input or self.input_ended):
            poll.register(self.stdin, select.POLLOUT)
        for output in self.outputs.values():
            if output.fd is not None and output.window > 0 and len(self.out) < channel.WINDOW:
                poll.register(output.fd, select.POLLIN)
        ready = dict(poll.poll(5000))
        if self.wake in ready:
            os.read(self.wake, 4096)
        self.reap()
        for output in self.outputs.values():
            if output.fd in ready:
                self.read(output)
        if self.stdin in ready:
            self.feed()
        self.flush()
        if ready.get(self.sock.fileno(), 0) & ~select.POLLOUT:
            self.receive()

    def reap(self):
        """Takes the ends of the command and of whatever it orphaned."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
                if not self.detach:
                    self.kill_all()

    def read(self, output):
        try:
            data = os.read(output.fd, min(channel.CHUNK, output.window))
        except BlockingIOError:
            return
        if data:
            output.window -= len(data)
            self.send(output.kind, data)
        else:
            os.close(output.fd)
            output.fd = None

    def drained(self):
        """Whether all that the ended command wrote has been taken."""
        for output in self.outputs.values():
            if output.fd is None:
                continue
            # A detached leftover may hold the pipe open for ever: what is in it now is all.
            poll = select.poll()
            poll.register(output.fd, select.POLLIN)
            if not self.detach or poll.poll(0):
                return False
        return True

    def feed(self):
        try:
            if self.input:
                count = os.write(self.stdin, self.input[:channel.CHUNK])
                del self.input[:count]
                self.out += channel.credit(0, count)
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads: the client gets no further credit and stops.
            self.input.clear()
            self.input_ended = True
        if self.input_ended and not self.input:
            os.close(self.stdin)
            self.stdin = None

    def flush(self):
        try:
            while self.out:
                sent = self.sock.send(memoryview(self.out)[:channel.CHUNK * 4])
                del self.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.connected = False

    def receive(self):
        try:
            data = self.sock.recv(channel.CHUNK * 4)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.connected = False
            return
        self.decoder.push(data)
        for kind, payload in self.decoder.frames():
            self.handle(kind, payload)

    def handle(self, kind, payload):
        if kind == b"I":
            if len(self.input) + len(payload) > channel.WINDOW:
                raise channel.ProtocolError("more input than allowed")
            if self.stdin is None:
                return
            self.input += payload
            self.input_ended = self.input_ended or not payload
        elif kind == b"S":
            try:
                os.killpg(self.pid, payload[0])
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
        elif kind == b"C":
            stream, count = channel.CREDIT.unpack(payload)
            self.outputs[stream].window += count
        elif kind == b"P":
            output = self.outputs[payload[0]]
            if output.fd is not None:
                os.close(output.fd)
                output.fd = None
        else:
            raise channel.ProtocolError("unknown frame %r" % kind)

    def say_goodbye(self):
        """Sends what is left and waits for the client to close, so that nothing of it is lost to a reset."""
        until = time.monotonic() + GOODBYE_SECONDS
        shut = False
        while self.connected and time.monotonic() < until:
            if not self.out and not shut:
                self.sock.shutdown(socket.SHUT_WR)
                shut = True
            poll = select.poll()
            poll.register(self.sock, select.POLLIN | (select.POLLOUT if self.out else 0))
            poll.poll(1000)
            self.flush()
            try:
                self.connected = bool(self.sock.recv(channel.CHUNK))
            except BlockingIOError:
                pass
            except OSError:
                return

    def end(self):
        """Leaves nothing of the command behind, unless it was asked to be left."""
        if self.detach:
            return
        self.kill_all()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    self.kill_all()
                    time.sleep(0.01)
            except ChildProcessError:
                break
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass

    def kill_all(self):
        try:
            write(self.cgroup + "/cgroup.kill", "1")
        except OSError:
            pass
        # What moved to another cgroup: everything below this process.
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def descendants(pid):
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                for child in file.read().split():
                    found.append(int(child))
                    found += descendants(int(child))
    except OSError:
        pass
    return found
