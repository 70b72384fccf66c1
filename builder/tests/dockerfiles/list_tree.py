"""Prints everything below a root, a line of JSON each, as far as two builds of one Dockerfile must agree on it.

    python3 list_tree.py ROOT
"""
import hashlib
import json
import os
import stat
import sys

KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFCHR: "character",
    stat.S_IFBLK: "block", stat.S_IFSOCK: "socket",
}
root = sys.argv[1].rstrip("/") or ""
device = os.lstat(root or "/").st_dev
first = {}


def text(name):
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def digest(path):
    sum = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            sum.update(piece)
    return sum.hexdigest()


def show(path, name):
    status = os.lstat(path)
    kind = KINDS[stat.S_IFMT(status.st_mode)]
    entry = {"path": text(name), "kind": kind, "mode": oct(stat.S_IMODE(status.st_mode)), "owner": [status.st_uid, status.st_gid]}
    xattrs = os.listxattr(path, follow_symlinks=False)
    if xattrs:
        entry["xattrs"] = {key: os.getxattr(path, key, follow_symlinks=False).hex() for key in sorted(xattrs)}
    if kind == "link":
        entry["to"] = text(os.readlink(path))
    elif kind == "file":
        entry["size"] = status.st_size
        entry["sha256"] = digest(path)
        # Not the count of names: an overlay counts those that a layer above has taken away.
        if status.st_ino in first:
            entry["same_as"] = text(first[status.st_ino])
        elif status.st_nlink > 1:
            first[status.st_ino] = name
    elif kind in ("character", "block"):
        entry["device"] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    print(json.dumps(entry, sort_keys=True))


def walk(folder):
    for name in sorted(os.listdir((root + folder) or "/")):
        below = f"{folder}/{name}"
        path = root + below
        status = os.lstat(path)
        # What is mounted there is not of the tree.
        if status.st_dev != device:
            continue
        show(path, below)
        if stat.S_ISDIR(status.st_mode):
            walk(below)


walk("")
