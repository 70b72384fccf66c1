"""docs/e2b-matrix.md: which calls of which SDK versions passed."""

from verdict import snake

HEAD = """# What of the E2B SDKs works

Written by `scripts/test sdks` from what it saw: the official SDKs, installed from their registries, against a host with real
guests. Do not edit it.

✓ passed wherever it was run · — this version has no such call · **not there**: refused with an error, by decision ·
**failed** · empty: no check in this language names it

`Interpreter` is the sandbox of the code interpreter's SDK, on the template of `docs/examples/code-interpreter`.

"""


def write(path, sdks, judged):
    columns = [(sdk["language"], sdk["version"]) for sdk in sdks]
    text = HEAD + runs(sdks, judged) + table(columns, judged)
    with open(path, "w") as file:
        file.write(text)


def runs(sdks, judged):
    """A line for each run: how the host was reached, and how many checks passed."""
    lines = ["| SDK | reached by | mode | passed | not there | failed |", "|---|---|---|---|---|---|"]
    seen = {}
    for result in judged:
        key = (result["language"], result["version"], result["transport"], result["mode"])
        counts = seen.setdefault(key, {"passed": 0, "not there": 0, "failed": 0, "absent": 0})
        counts[result["verdict"]] += 1
    reached = {"headers": "`E2B_API_URL` and `E2B_SANDBOX_URL`, HTTP", "hosts": "`E2B_DOMAIN`, TLS"}
    order = {(sdk["language"], sdk["version"]): index for index, sdk in enumerate(sdks)}
    for key in sorted(seen, key=lambda key: (order[key[:2]], key[2:])):
        language, version, transport, mode = key
        counts = seen[key]
        lines.append("| %s %s | %s | %s | %d | %d | %d |" % (language, version, reached[transport], mode, counts["passed"],
                                                          counts["not there"], counts["failed"]))
    return "\n".join(lines) + "\n\n"


def table(columns, judged):
    cells = {}
    for result in judged:
        for call in result["calls"]:
            cells.setdefault(snake(call), {}).setdefault((result["language"], result["version"]), []).append(result["verdict"])
    lines = ["| call | %s |" % " | ".join("%s %s" % column for column in columns), "|---|%s" % ("---|" * len(columns))]
    for call in sorted(cells, key=lambda call: (call.split(".")[0], call)):
        lines.append("| `%s` | %s |" % (call, " | ".join(cell(cells[call].get(column, [])) for column in columns)))
    return "\n".join(lines) + "\n"


def cell(verdicts):
    """The worst of what a call came to; nothing where nothing says."""
    if "failed" in verdicts:
        return "**failed**"
    if "not there" in verdicts:
        return "**not there**"
    if "passed" in verdicts:
        return "✓"
    return "—" if verdicts else ""
