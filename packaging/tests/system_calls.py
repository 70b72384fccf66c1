"""Which system calls a process makes, and which its unit lets it make."""

import re
import subprocess


def members(*names):
    """The system calls of these, where `@name` is one of systemd's sets."""
    calls, waiting, seen = set(), list(names), set()
    while waiting:
        name = waiting.pop()
        if not name.startswith("@"):
            calls.add(name)
        elif name not in seen:
            seen.add(name)
            listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
            waiting += re.findall(r"^    (@?[a-z_0-9-]+)$", listed, re.MULTILINE)
    return calls


def forbidden(filters, made):
    """Those of `made` that a unit with these values of SystemCallFilter= refuses. The first decides what all others are to."""
    allowed = made if filters[0].startswith("~") else members("@default")
    for value in filters:
        named = members(*value.removeprefix("~").split())
        allowed = allowed - named if value.startswith("~") else allowed | named
    return made - allowed


def made(summary):
    """Those in what `strace -c` wrote."""
    rows = (line.split() for line in summary.splitlines())
    return {row[-1] for row in rows if len(row) >= 4 and re.fullmatch(r"[0-9.]+", row[0]) and row[-1] != "total"}
