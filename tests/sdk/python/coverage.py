"""The public calls of the installed SDK, by looking at it: what no check names is reported as unchecked."""

import inspect

# Calls without a part in the exchange with a host.
LOCAL = {
    "Sandbox.get_mcp_url": "puts a host name together",
}


def public(e2b, is_async):
    """Names such as `Sandbox.create` and `files.read` of every public method."""
    return {"%s.%s" % (name, method) for name, of in parts(e2b, is_async).items() for method in methods(of)}


def has(e2b, is_async, call):
    """Whether this version has a call that a check names: `files.read`, or with an option of it, `files.read(gzip)`."""
    name, _, option = call.rstrip(")").partition("(")
    part, _, method = name.partition(".")
    if part == "Interpreter":
        return True
    of = parts(e2b, is_async).get(part) or getattr(e2b, part, None)
    if of is None or not hasattr(of, method):
        return False
    return not option or option in inspect.signature(getattr(of, method)).parameters


def parts(e2b, is_async):
    """The classes behind a sandbox, by the name that a user has for them."""
    prefix = "Async" if is_async else ""
    classes = {"Sandbox": getattr(e2b, prefix + "Sandbox")}
    for part in ("commands", "files", "pty", "git"):
        # By the type that the property is said to return.
        value = inspect.getattr_static(classes["Sandbox"], part, None)
        if isinstance(value, property):
            classes[part] = inspect.signature(value.fget, eval_str=True).return_annotation
    classes["CommandHandle"] = getattr(e2b, prefix + "CommandHandle")
    classes["WatchHandle"] = getattr(e2b, prefix + "WatchHandle")
    return classes


def methods(of):
    for name in dir(of):
        if not name.startswith("_") and callable(getattr(of, name)) and not inspect.isclass(getattr(of, name)):
            yield name
