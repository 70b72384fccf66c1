"""A host with real guests for the SDKs to talk to: `sandpiper up`, in the nested host where this machine's KVM runs no Linux.

It is reached in one of two ways. By `headers`: plain HTTP, the API at one address and all sandboxes at another. By `hosts`: TLS
with the host's own CA, the API and each sandbox at a name of its own below one domain.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time

import image
import names

DOMAIN = "sandboxes.test"
# A fresh nested host starts first, and imports the base template.
START_SECONDS = 900
END_SECONDS = 180
# Within this a warm snapshot with the interpreter's server is made.
WARM_SECONDS = 600
INTERPRETER_IS_UP = "curl -fs http://127.0.0.1:49999/health"


class Host:
    def __init__(self, root, transport, interpreter):
        self.root, self.transport, self.interpreter = root, transport, interpreter
        self.programs = os.environ.get("SANDPIPER_PROGRAMS") or os.environ.get("CARGO_TARGET_DIR", root + "/target") + "/release"
        self.up = self.names = None

    def __enter__(self):
        self.work = tempfile.TemporaryDirectory(prefix="sandpiper-sdk-")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            try:
                self.up.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.up.kill()
        if self.names is not None:
            self.names.close()
        self.work.cleanup()

    def start(self):
        self.api, self.data_plane = free_port(), free_port()
        nested = self.output([self.programs + "/sandpiper", "doctor", "--rung"]).strip() != "1"
        argv = [self.programs + "/sandpiper", "--json", "up", "--stop-sandboxes-on-exit", "--listen", "127.0.0.1:%d" % self.api,
                "--data-plane-listen", "127.0.0.1:%d" % self.data_plane, "--data-plane-host", DOMAIN]
        argv += ["--nested"] * nested + ["--tls"] * (self.transport == "hosts")
        self.log = self.work.name + "/up.log"
        with open(self.log, "w") as log:
            self.up = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                                       env=self.environment_of_programs())
        ready, _, _ = select.select([self.up.stdout], [], [], START_SECONDS)
        line = self.up.stdout.readline() if ready else ""
        if not line:
            with open(self.log, errors="replace") as log:
                raise SystemExit("error: the host did not start:\n" + "".join(log.readlines()[-40:]))
        self.make_small()
        # The same key as the SDKs spell it: some look at it before they send it.
        self.key = json.loads(line)["api_key"].replace("spk_", "e2b_", 1)
        if self.transport == "hosts":
            self.names = names.Server(DOMAIN)
            self.ca = self.work.name + "/ca.pem"
            with open(self.ca, "w") as file:
                file.write(self.output([self.root + "/scripts/host", "--", "cat", "/var/lib/sandpiper/ca/%s.pem" % DOMAIN]))
        if self.interpreter:
            self.make_interpreter()
            self.await_interpreter()

    def make_small(self):
        """The template `small`, which checks build upon: of the base template each build would copy half a gigabyte."""
        archive = self.work.name + "/small.tar"
        image.write(archive)
        self.output([self.programs + "/sandpiper", "template", "build", "--archive", archive, "-t", "small", "--cpu", "1",
                     "--memory", "256"])

    def make_interpreter(self):
        """The example of a code interpreter, under its SDK's own name for it, unless an earlier host of the same disk made it."""
        archive = self.output([self.root + "/scripts/example", "code-interpreter"]).strip()
        name = "code-interpreter-v1:" + os.path.basename(archive).removesuffix(".tar")
        if subprocess.run([self.programs + "/sandpiper", "template", "show", name], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, env=self.environment_of_programs()).returncode:
            self.output([self.programs + "/sandpiper", "template", "build", "--archive", archive, "-t", name, "--cpu", "1",
                         "--memory", "768", "--start", "python3 /opt/interpreter/server.py", "--ready", INTERPRETER_IS_UP])

    def await_interpreter(self):
        """Has sandboxes begin with the interpreter up: its warm snapshot may be of an earlier build of the host's programs, and
        the first sandbox then has another made."""
        deadline = time.monotonic() + WARM_SECONDS
        ask = [self.programs + "/sandpiper", "run", "--template", "code-interpreter-v1", "--", "sh", "-c", INTERPRETER_IS_UP]
        if self.transport == "hosts":
            ask[1:1] = ["--ca", self.ca]
        with contextlib.closing(names.Server(DOMAIN)) as addresses:
            while subprocess.run(addresses.command(ask), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 env=self.environment_of_programs()).returncode:
                if time.monotonic() > deadline:
                    raise SystemExit("error: after %d s sandboxes still begin without the interpreter's server; the agent's log "
                                     "says why no warm snapshot is made" % WARM_SECONDS)
                time.sleep(2)

    def environment_of_programs(self):
        # Credentials of its own, so that it makes a key and says it.
        return os.environ | {"XDG_CONFIG_HOME": self.work.name, "SANDPIPER_CHECKOUT": self.root}

    def output(self, argv):
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
                              env=self.environment_of_programs()).stdout

    def environment(self):
        """What tells an SDK where this host is."""
        if self.transport == "headers":
            return {"E2B_API_KEY": self.key, "E2B_API_URL": "http://127.0.0.1:%d" % self.api,
                    "E2B_VOLUME_API_URL": "http://127.0.0.1:%d" % self.api,
                    "E2B_SANDBOX_URL": "http://127.0.0.1:%d" % self.data_plane}
        # The domain alone: the API is at `api.` below it.
        return {"E2B_API_KEY": self.key, "E2B_DOMAIN": "%s:%d" % (DOMAIN, self.data_plane),
                "SSL_CERT_FILE": self.ca, "NODE_EXTRA_CA_CERTS": self.ca}

    def command(self, argv):
        """A client's command, for which the names of sandboxes have addresses."""
        return argv if self.names is None else self.names.command(argv)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
