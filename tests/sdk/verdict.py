"""What a result counts for: passed, failed, not there (and known to be), or absent from this version of an SDK."""

import re
import tomllib


def listed(path):
    """The calls that are known not to be there, each with the pattern of its error."""
    with open(path, "rb") as file:
        return {call["name"]: call["error"] for call in tomllib.load(file).get("call", [])}


def of(result, listed):
    """The `verdict` of a result, and its `detail` where that is another."""
    calls = [snake(call) for call in result["calls"]]
    pattern = next((listed[call] for call in calls if call in listed), None)
    if pattern is None or result["result"] == "absent":
        return {"verdict": result["result"]}
    if result["result"] == "passed":
        return {"verdict": "failed", "detail": "it works: take %s off not-there.toml" % ", ".join(calls)}
    if re.search(pattern, result["detail"]):
        return {"verdict": "not there"}
    return {"verdict": "failed", "detail": "expected an error like %r: %s" % (pattern, result["detail"])}


def snake(name):
    """A JavaScript name as Python writes it: `files.makeDir` is `files.make_dir`."""
    part, dot, call = name.partition(".")
    return part + dot + re.sub("[A-Z]", lambda found: "_" + found[0].lower(), call)
