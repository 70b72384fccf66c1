#!/usr/bin/python3
"""The SDKs, installed by pip and npm into $SANDPIPER_CACHE/sdks, a folder for each version; once per machine.

    tests/sdk/install.py       installs E2B's command line, into the folder `cli` there
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib

FOLDER = os.environ.get("SANDPIPER_CACHE", "/var/cache/sandpiper") + "/sdks"
# The oldest Node that the newest SDK takes; Debian 12's own is older.
NODE = 20
# The versions of what an SDK itself needs are the newest that it takes.
PACKAGES = {"python": ("e2b", "e2b-code-interpreter"), "javascript": ("e2b", "@e2b/code-interpreter")}


def missing(language):
    """What this machine lacks for the SDKs of a language, '' if nothing."""
    if language == "python":
        ran = subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True)
        return "" if ran.returncode == 0 else "Debian's python3-venv"
    has_both = shutil.which("node") and shutil.which("npm")
    node = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout if has_both else ""
    major = re.match(r"v(\d+)\.", node)
    return "" if major and int(major[1]) >= NODE else "Node %d or later, with npm" % NODE


def ensure(sdk):
    """The folder that holds this SDK, installed if it is not there."""
    wanted = ["%s=%s" % pair for pair in zip(PACKAGES[sdk["language"]], (sdk["version"], sdk["interpreter"]))]
    return install(sdk["language"], wanted, "%s/%s-%s" % (FOLDER, sdk["language"], sdk["version"]))


def install(language, wanted, folder):
    """Installs these packages, NAME=VERSION, into a folder of their own, unless they are there; the folder."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(FOLDER + "/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read(folder + "/installed") == " ".join(wanted):
            return folder
        say("installing %s for %s" % (" ".join(wanted), language))
        # A folder that has the mark is whole.
        shutil.rmtree(folder, ignore_errors=True)
        if language == "python":
            run(["/usr/bin/python3", "-m", "venv", folder])
            run([folder + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", *(name.replace("=", "==") for name in wanted)])
        else:
            os.makedirs(folder)
            with open(folder + "/package.json", "w") as file:
                file.write('{"private": true}\n')
            run(["npm", "install", "--prefix", folder, "--silent", "--no-audit", "--no-fund",
                 *("@".join(name.rsplit("=", 1)) for name in wanted)])
        with open(folder + "/installed", "w") as file:
            file.write(" ".join(wanted))
    return folder


def program(sdk, here):
    """The command that runs this SDK's checks."""
    if sdk["language"] == "python":
        return [sdk["folder"] + "/bin/python", "-B", here + "/python/main.py"]
    return ["node", here + "/javascript/main.mjs"]


def environment(sdk):
    """Nothing of this shell's own E2B account."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    return own | {"SDK_FOLDER": sdk["folder"], "NODE_NO_WARNINGS": "1"}


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def run(argv):
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit("error: %s ended with status %d\n%s%s" % (" ".join(argv), ran.returncode, ran.stdout, ran.stderr))


def say(text):
    print("\033[2m[%s]\033[0m %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


def main():
    with open(os.path.dirname(os.path.realpath(__file__)) + "/versions.toml", "rb") as file:
        version = tomllib.load(file)["cli"]["version"]
    if lacking := missing("javascript"):
        print("SKIPPED: E2B's command line: this machine does not have %s" % lacking)
        return
    print(install("javascript", ["@e2b/cli=" + version], FOLDER + "/cli"))


if __name__ == "__main__":
    main()
