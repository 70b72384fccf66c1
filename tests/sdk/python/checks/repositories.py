"""Git in a sandbox, which the SDK does with commands: one repository through all of its calls."""

from suite import check, of

AUTHOR = {"author_name": "A. Writer", "author_email": "writer@example.com"}


@check("git.init", "git.configure_user", "git.add", "git.commit", "git.status", "git.branches", "git.get_config", "git.set_config")
async def a_change_is_committed(t):
    sandbox = await t.sandbox()
    git = sandbox.git
    await of(git.init("repository", initial_branch="main"))
    await of(git.configure_user("A. Writer", "writer@example.com"))
    await of(sandbox.files.write("repository/a.txt", "a"))

    before = await of(git.status("repository"))
    await of(git.add("repository"))
    await of(git.commit("repository", "first"))
    after = await of(git.status("repository"))
    await of(git.set_config("core.pager", "cat", scope="local", path="repository"))

    assert [file.name for file in before.file_status] == ["a.txt"], before
    assert after.file_status == [], after
    assert (await of(git.branches("repository"))).current_branch == "main"
    assert await of(git.get_config("core.pager", scope="local", path="repository")) == "cat"


@check("git.create_branch", "git.checkout_branch", "git.delete_branch", "git.reset", "git.restore")
async def branches_come_and_go(t):
    sandbox = await t.sandbox()
    git = await repository(sandbox, "branched")

    await of(git.create_branch("branched", "topic"))
    await of(sandbox.files.write("branched/a.txt", "changed"))
    await of(git.restore("branched", ["a.txt"]))
    await of(sandbox.files.write("branched/a.txt", "changed again"))
    await of(git.reset("branched", mode="hard"))
    await of(git.checkout_branch("branched", "main"))
    await of(git.delete_branch("branched", "topic"))

    assert await of(sandbox.files.read("branched/a.txt")) == "a"
    assert (await of(git.branches("branched"))).branches == ["main"]


@check("git.remote_add", "git.remote_get", "git.push", "git.clone", "git.pull")
async def commits_go_to_another_repository_and_come_from_it(t):
    sandbox = await t.sandbox()
    git = await repository(sandbox, "pushed")
    await of(git.init("shared.git", bare=True, initial_branch="main"))

    await of(git.remote_add("pushed", "origin", "/home/user/shared.git"))
    await of(git.push("pushed", remote="origin", branch="main"))
    await of(git.clone("/home/user/shared.git", path="cloned"))
    await of(git.commit("pushed", "second", allow_empty=True, **AUTHOR))
    await of(git.push("pushed", remote="origin", branch="main"))
    await of(git.pull("cloned", remote="origin", branch="main"))

    assert await of(git.remote_get("pushed", "origin")) == "/home/user/shared.git"
    assert await t.sh(sandbox, "git -C cloned log --format=%s") == "second\nfirst"


@check("git.dangerously_authenticate")
async def credentials_are_kept_for_a_host(t):
    sandbox = await t.create()

    await of(sandbox.git.dangerously_authenticate("someone", "a-password", host="git.example.com"))

    assert "git.example.com" in await t.sh(sandbox, "cat ~/.git-credentials")


async def repository(sandbox, path):
    """A new repository with one commit, of the file a.txt."""
    git = sandbox.git
    await of(git.init(path, initial_branch="main"))
    await of(sandbox.files.write(path + "/a.txt", "a"))
    await of(git.add(path))
    await of(git.commit(path, "first", **AUTHOR))
    return git
