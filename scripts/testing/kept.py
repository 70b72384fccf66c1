"""Builds that outlive a checkout.

Cargo takes a source for changed when its time is later than the build's, and in a fresh checkout every file is from now. A
file whose content is what it was in the last run gets the time that it had then; one whose content changed keeps its own,
so it is built again, also when it changes back.
"""

import hashlib
import json
import os
import subprocess


def keep_times(root, target):
    """Gives unchanged sources of the checkout at `root` the times of the last run that built into `target`."""
    record = os.path.join(target, "sources.json")
    before = read(record, root)
    now = {path: stamped(os.path.join(root, path), digest, before.get(path)) for path, digest in digests(root)}
    os.makedirs(target, exist_ok=True)
    with open(record + ".new", "w") as file:
        json.dump({"root": root, "sources": now}, file)
    os.rename(record + ".new", record)


def read(record, root):
    """What was recorded of a checkout at the same place: cargo builds anew for another."""
    try:
        with open(record) as file:
            recorded = json.load(file)
    except (OSError, ValueError):
        return {}
    return recorded["sources"] if recorded["root"] == root else {}


def digests(root):
    """Each tracked file with its content's digest, then each folder with its names': cargo looks at the times of both."""
    # Nothing, where the sources are no checkout.
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False).stdout.decode()
    folders = {}
    for path in filter(None, listed.split("\0")):
        whole = os.path.join(root, path)
        if os.path.islink(whole) or not os.path.isfile(whole):
            continue
        with open(whole, "rb") as file:
            yield path, hashlib.sha256(file.read()).hexdigest()
        while path:
            path, name = os.path.split(path)
            folders.setdefault(path, set()).add(name)
    for folder, names in folders.items():
        yield os.path.join(folder, ""), hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()


def stamped(path, digest, before):
    """The digest and time of a file, which gets its former time if its content is the former."""
    if before and before[0] == digest:
        os.utime(path, ns=(before[1], before[1]))
    return [digest, os.stat(path).st_mtime_ns]
