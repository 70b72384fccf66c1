"""Files and folders, and what changes in them."""

import io

from e2b import FileType, InvalidArgumentException, NotFoundException
from e2b import FilesystemEventType as Event

from suite import check, collected, of, raises


@check("files.write", "files.read")
async def a_file_holds_what_was_written(t):
    files = (await t.sandbox()).files
    binary = bytes(range(256)) * 5000

    written = await of(files.write("text.txt", "grüße\n"))
    await of(files.write("/home/user/new/folder/binary", binary))
    await of(files.write("from-a-stream", io.BytesIO(b"streamed")))

    assert (written.path, written.name) == ("/home/user/text.txt", "text.txt"), written
    assert await of(files.read("text.txt")) == "grüße\n"
    assert bytes(await of(files.read("/home/user/new/folder/binary", format="bytes"))) == binary
    assert await collected(files.read("/home/user/new/folder/binary", format="stream")) == binary
    assert await of(files.read("from-a-stream")) == "streamed"


@check("files.read")
async def reading_what_is_missing_raises(t):
    files = (await t.sandbox()).files

    error = await raises(NotFoundException, lambda: files.read("missing.txt"))

    assert "missing.txt" in str(error), error


@check("files.write", "files.read")
async def files_are_written_and_read_as_a_user(t):
    sandbox = await t.sandbox()

    await of(sandbox.files.write("secret", "of root", user="root"))

    assert await t.sh(sandbox, "stat -c %U /root/secret", user="root") == "root"
    assert await of(sandbox.files.read("secret", user="root")) == "of root"


@check("files.write(metadata)")
async def a_file_keeps_what_is_noted_of_it(t):
    files = (await t.sandbox()).files

    await of(files.write("noted", "x", metadata={"origin": "a-check"}))

    assert (await of(files.get_info("noted"))).metadata == {"origin": "a-check"}


@check("files.write(gzip)", "files.read(gzip)")
async def files_go_compressed(t):
    files = (await t.sandbox()).files
    text = "again and again\n" * 10000

    await of(files.write("compressed", text, gzip=True))

    assert (await of(files.get_info("compressed"))).size == len(text)
    assert await of(files.read("compressed", gzip=True)) == text


@check("files.write(use_octet_stream)")
async def a_file_goes_as_it_is_or_as_a_form(t):
    files = (await t.sandbox()).files

    await of(files.write("as-it-is", "one", use_octet_stream=True))
    await of(files.write("as-a-form", "two", use_octet_stream=False))

    assert (await of(files.read("as-it-is")), await of(files.read("as-a-form"))) == ("one", "two")


@check("files.write_files")
async def several_files_are_written_at_once(t):
    files = (await t.sandbox()).files

    written = await of(files.write_files([{"path": "several/%d" % n, "data": "file %d" % n} for n in range(3)]))

    assert [info.path for info in written] == ["/home/user/several/%d" % n for n in range(3)], written
    assert await of(files.read("several/2")) == "file 2"


@check("files.list")
async def folders_are_listed_to_a_depth(t):
    files = (await t.sandbox()).files
    await of(files.write("tree/branch/leaf", "green"))

    shallow = await of(files.list("tree"))
    deep = await of(files.list("tree", depth=2))

    assert [(entry.name, entry.type) for entry in shallow] == [("branch", FileType.DIR)], shallow
    assert [entry.path for entry in deep] == ["/home/user/tree/branch", "/home/user/tree/branch/leaf"], deep
    await raises(NotFoundException, lambda: files.list("no-such-folder"))


@check("files.exists", "files.remove")
async def what_is_removed_exists_no_more(t):
    files = (await t.sandbox()).files
    await of(files.write("going/away", "x"))

    before = await of(files.exists("going"))
    await of(files.remove("going"))

    assert (before, await of(files.exists("going"))) == (True, False)


@check("files.get_info")
async def an_entry_is_described(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.write("described", "12345"))
    await t.sh(sandbox, "chmod 640 described; ln -sf described link")

    info = await of(sandbox.files.get_info("described"))
    link = await of(sandbox.files.get_info("link"))

    assert (info.name, info.type, info.path, info.size) == ("described", FileType.FILE, "/home/user/described", 5), info
    assert (info.mode, info.permissions, info.owner, info.group) == (0o640, "-rw-r-----", "user", "user"), info
    assert link.symlink_target == "/home/user/described", link


@check("files.make_dir")
async def a_folder_is_made_once(t):
    files = (await t.sandbox()).files

    first = await of(files.make_dir("made/inside"))
    second = await of(files.make_dir("made/inside"))

    assert (first, second) == (True, False)


@check("files.rename")
async def a_file_is_renamed(t):
    files = (await t.sandbox()).files
    await of(files.write("old-name", "kept"))

    renamed = await of(files.rename("old-name", "new-name"))

    assert renamed.path == "/home/user/new-name", renamed
    assert await of(files.read("new-name")) == "kept"
    assert await of(files.exists("old-name")) is False


@check("files.watch_dir", "WatchHandle.stop")
async def changes_in_a_folder_are_seen(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.make_dir("watched"))
    handle, events = await watch(t, sandbox, "watched")

    await of(sandbox.files.write("watched/one", "1"))
    await t.until("the file's creation", lambda: has(events, "one", Event.CREATE))
    await of(sandbox.files.remove("watched/one"))
    await t.until("the file's removal", lambda: has(events, "one", Event.REMOVE))
    await of(handle.stop())


@check("files.watch_dir")
async def changes_below_a_folder_are_seen_when_asked_for(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.make_dir("above/below"))
    handle, events = await watch(t, sandbox, "above", recursive=True)

    await of(sandbox.files.write("above/below/two", "2"))
    await t.until("the file's creation", lambda: has(events, "below/two", Event.CREATE))
    await of(handle.stop())


@check("files.watch_dir")
async def what_is_no_folder_cannot_be_watched(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.write("no-folder", "x"))

    await raises(InvalidArgumentException, watch(t, sandbox, "no-folder"))
    await raises(NotFoundException, watch(t, sandbox, "not-here"))


@check("WatchHandle.get_new_events")
async def events_are_given_once(t):
    sandbox = await t.sandbox()
    await of(sandbox.files.make_dir("polled"))
    handle, _ = await watch(t, sandbox, "polled")

    await t.sh(sandbox, "mkdir polled/three")
    events = await t.until("an event", lambda: handle.get_new_events())
    again = await of(handle.get_new_events())
    await of(handle.stop())

    assert [(event.name, event.type) for event in events] == [("three", Event.CREATE)], events
    assert again == []


async def watch(t, sandbox, path, **options):
    """A watch, and a function that gives all its events until now: the synchronous half asks, the other is told."""
    seen = []
    if t.is_async:
        handle = await sandbox.files.watch_dir(path, on_event=seen.append, **options)
        return handle, lambda: seen
    handle = sandbox.files.watch_dir(path, **options)

    def ask():
        seen.extend(handle.get_new_events())
        return seen
    return handle, ask


def has(events, name, kind):
    return any((event.name, event.type) == (name, kind) for event in events())
