"""What `scripts/host` (which has the help) asks of the nested host.

    client.py run IMAGE CHECKOUT KEEP FORWARDS ARGUMENT...    KEEP may be empty; FORWARDS: PORT:PORT,...
    client.py stop | status | forward FORWARDS
"""

import json
import os
import queue
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True
import channel  # noqa: E402
import life  # noqa: E402
from life import Refused, Unreachable, die, say  # noqa: E402

# Variables that name things which only exist on the machine, or belong to the shell that called.
NOT_PASSED = {"_", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR",
              "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY",
              "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "MAKEFLAGS", "MFLAGS"}


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
            die("the nested host ended while the command ran; what it printed last is in %s/console.log" % life.RUN, 125)
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
    shares = [os.path.realpath(path) for path in (checkout, os.environ.get("CARGO_TARGET_DIR"), life.CACHE, cwd) if path]
    request = {"op": "run", "argv": argv, "cwd": cwd, "env": env, "shares": shares, "detach": detach}
    if keep is not None:
        request["keep"] = keep
    for attempt in range(3):
        now = life.ensure(image, 900 if keep is None else keep)
        add_forwards(forwards)
        try:
            sock, _, decoder = life.connect(now, dict(request))
            return Command(sock, decoder).run()
        except Unreachable as error:
            # It was just ending for idleness, or it hangs: nothing of the command has run.
            with life.Lock():
                if life.state() and life.state()["pid"] == now["pid"]:
                    say("nested host: %s, starting it again" % error)
                    life.end(now)
    die("the nested host does not answer; see %s/console.log" % life.RUN, 125)


def stop():
    with life.Lock():
        now = life.state()
        if now is None:
            say("nested host: not running")
            return
        life.ask(now, "poweroff")
        life.end(now)
        say("nested host: stopped")


def status():
    now = life.state()
    if now is None:
        print("nested host: not running")
        return 3
    answer = life.ask(now, "status")
    print("nested host: running, pid %d, console %s/console.log" % (now["pid"], life.RUN))
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
        with life.Lock():
            now = life.state()
            if now is None:
                die("the nested host is not running; a command starts it: scripts/host --forward %s -- true" % spec)
            ours, _, theirs = spec.partition(":")
            if now["forwards"].get(ours) == int(theirs or ours):
                continue
            ours, theirs = life.forward(spec)
            life.connect(now, {"op": "publish", "port": theirs})[0].close()
            now["forwards"][str(ours)] = theirs
            life.put(life.RUN + "/state.json", json.dumps(now))
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
