//! Versions of templates, and sandboxes of them: those that come of a checkpoint or a stopped sandbox, for which no machine
//! builds.

use reqwest::Method;
use sandpiper::client::{Client, ClientError, CreateSandbox, NewVersion, Source};
use sandpiper_protocol::agent::StartKind;
use sandpiper_protocol::template::BuildState;
use serde_json::json;
use support::{Checkpoint, Host, Sandbox, Template, small, version_of};

tests! {
    shared: [
        a_version_of_a_checkpoint_has_its_files_and_is_found_by_each_of_its_names,
        a_version_of_a_stopped_sandbox_has_its_files,
        a_tag_goes_over_to_the_version_that_was_given_it_last,
        a_version_that_a_sandbox_is_made_of_stays_and_frees_its_bytes_when_that_has_gone,
        a_start_command_runs_in_every_sandbox_from_its_first_moment,
        a_start_command_that_does_not_come_up_fails_the_build_with_its_reason,
        no_team_sees_what_another_has_built_until_it_is_public,
    ],
    alone: [
        a_build_that_is_cancelled_leaves_nothing,
        an_agent_that_is_killed_leaves_no_build_under_way,
    ],
}

/// Serves its files; answers when it does.
const SERVER: &str = "cd / && exec python3 -m http.server 8000 --bind 127.0.0.1";
pub(crate) const ASK: &str =
    "python3 -c 'import urllib.request; urllib.request.urlopen(\"http://127.0.0.1:8000/etc/hostname\")'";

/// A file with all that a file can have, and what says so.
const FURNISH: &str =
    "set -e; mkdir -p /srv/made; cd /srv/made; echo content > file; cp /bin/true setuid; chmod 4755 setuid
    ln file same; ln -s file link; truncate -s 100M sparse; chown 33:44 same; mkfifo pipe
    python3 -c 'import os, struct
os.setxattr(\"file\", \"user.colour\", b\"teal\")
os.setxattr(\"setuid\", \"security.capability\", struct.pack(\"<IIIII\", 0x02000001, 1 << 10, 0, 0, 0))'; sync";
const INSPECT: &str = "cd /srv/made; stat -c '%n %a %u:%g %h %s' *; readlink link; cat file; du -k sparse | cut -f1
    python3 -c 'import os
print(os.getxattr(\"file\", \"user.colour\"), os.getxattr(\"setuid\", \"security.capability\").hex())'";

async fn a_version_of_a_checkpoint_has_its_files_and_is_found_by_each_of_its_names() {
    let host = Host::shared();
    let (sandbox, checkpoint) = furnished(host).await;
    let expected = sandbox.out(INSPECT).await;
    sandbox.delete().await;
    let template = host.template("of-a-checkpoint").await;

    let new = NewVersion { tags: vec!["v1".into()], ..version_of(Source::Checkpoint(checkpoint.id.clone())) };
    let version = template.build(&new).await;

    assert_eq!((version.number, version.tags.as_slice()), (1, &["v1".to_owned()][..]));
    checkpoint.delete().await;
    let names =
        [template.sandbox(), template.sandbox_of("1"), template.sandbox_of(&version.id), template.sandbox_of("v1")];
    for request in names {
        let started = host.sandbox_with(&request).await;
        assert_eq!(start_of(&started).await, StartKind::Warm, "{:?}: the first start, too", request.template);
        assert_eq!(started.out(INSPECT).await, expected, "{:?}", request.template);
        let shown = host.client.show(&started.id).await.expect("the sandbox is there").raw;
        assert_eq!((&shown["template"], &shown["template_version"]), (&json!(template.slug), &json!(version.id)));
        host.leaves_nothing(started).await;
    }
    for missing in ["2", "ver0000000000000000000000", "v2"] {
        let refused = host.try_sandbox(&template.sandbox_of(missing)).await.err().expect("there is no such version");
        assert_eq!(refused.status(), Some(404), "{missing}: {refused}");
    }
}

async fn a_version_of_a_stopped_sandbox_has_its_files() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    assert_eq!(sandbox.root_sh(FURNISH).await.end.exit_code, 0);
    let expected = sandbox.out(INSPECT).await;
    let template = host.template("of-a-sandbox").await;
    let source = Source::Sandbox(sandbox.id.clone());
    let running = host.client.build_version(&template.slug, &version_of(source.clone())).await;
    assert_eq!(running.expect_err("it runs").code(), Some("invalid_state"));
    sandbox.pause().await.expect("the sandbox is paused");

    template.build(&version_of(source)).await;

    let started = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(started.out(INSPECT).await, expected);
    // Neither knows of what the other writes.
    sandbox.resume(None).await.expect("the sandbox is resumed");
    sandbox.root_sh("echo changed > /srv/made/file").await;
    started.root_sh("rm -r /srv/made/setuid").await;
    assert_eq!(started.out("cat /srv/made/file").await, "content\n");
    assert_eq!(sandbox.out("/srv/made/setuid && echo there").await, "there\n");
}

async fn a_tag_goes_over_to_the_version_that_was_given_it_last() {
    let host = Host::shared();
    let template = host.template("tagged").await;
    for number in ["1", "2"] {
        let sandbox = host.sandbox().await;
        sandbox.out(&format!("echo {number} > ~/number")).await;
        let checkpoint = sandbox.checkpoint(false).await.expect("the checkpoint is taken");
        let source = Source::Checkpoint(checkpoint.id.clone());
        template.build(&NewVersion { tags: vec!["stable".into()], ..version_of(source) }).await;

        let started = host.sandbox_with(&template.sandbox_of("stable")).await;

        assert_eq!(started.out("cat ~/number").await, format!("{number}\n"));
    }
    assert_eq!(template.show("1").await.expect("the version is there").tags, [""; 0]);
    let tagged = host.cli(&["template", "tag", "tagged:1", "stable", "first"]).output().expect("the command runs");
    assert!(tagged.status.success(), "{}", support::text(&tagged.stderr));
    for name in ["1", "stable", "first"] {
        let first = host.sandbox_with(&template.sandbox_of(name)).await;
        assert_eq!(first.out("cat ~/number").await, "1\n", "{name}");
    }
}

async fn a_version_that_a_sandbox_is_made_of_stays_and_frees_its_bytes_when_that_has_gone() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    sandbox.out("head -c 50000000 /dev/urandom > ~/big; sync").await;
    let checkpoint = sandbox.checkpoint(false).await.expect("the checkpoint is taken");
    sandbox.delete().await;
    let template = host.template("deleted").await;
    let version = template.build(&version_of(Source::Checkpoint(checkpoint.id.clone()))).await;
    checkpoint.delete().await;
    support::wait_until("all of its bytes are the version's", || async {
        let size = template.show("1").await.map_err(|error| error.to_string())?.size;
        if size > 50_000_000 { Ok(()) } else { Err(format!("it is charged with {size} bytes")) }
    })
    .await;
    let started = host.sandbox_with(&template.sandbox()).await;

    let refused = template.delete_version("1").await.expect_err("a sandbox is made of it");

    assert_eq!((refused.status(), refused.code()), (Some(409), Some("template_in_use")), "{refused}");
    assert_eq!(started.out("stat -c %s ~/big").await, "50000000\n");
    started.delete().await;
    template.delete_version("1").await.expect("nothing is made of it any more");
    assert_eq!(template.show(&version.id).await.expect_err("it has gone").status(), Some(404));
    host.has_no_version(&version.id).await;
    let gone = host.try_sandbox(&template.sandbox()).await.err().expect("there is no version");
    assert!(gone.to_string().contains("no version"), "{gone}");
}

async fn a_start_command_runs_in_every_sandbox_from_its_first_moment() {
    let host = Host::shared();
    let template = with_start_command(host, "started").await;
    let mut servers = Vec::new();
    for which in ["first", "second"] {
        let started = host.sandbox_with(&template.sandbox()).await;
        assert_eq!(start_of(&started).await, StartKind::Warm, "the {which}");
        // At once, without a second try.
        started.out(ASK).await;
        assert_eq!(started.out("ps -o user= -C python3 | sort -u").await, "user\n");
        servers.push(started);
    }
    // A disk without memory boots, and starts it anew.
    let mut first = servers.remove(0);
    first.pause().await.expect("the sandbox is paused");
    first.resume(None).await.expect("the sandbox is resumed");
    first.out(ASK).await;
}

/// A template whose one version has a server as its start command, which answers [`ASK`].
pub(crate) async fn with_start_command(host: &'static Host, name: &str) -> Template {
    let checkpoint = plain(host).await;
    let template = host.template(name).await;
    let source = Source::Checkpoint(checkpoint.id.clone());
    let new = NewVersion { start_cmd: Some(SERVER.into()), ready_cmd: Some(ASK.into()), ..version_of(source) };
    let version = template.build(&new).await;
    assert_eq!(version.raw["start_cmd"], SERVER);
    template
}

async fn a_start_command_that_does_not_come_up_fails_the_build_with_its_reason() {
    let host = Host::shared();
    let checkpoint = plain(host).await;
    let template = host.template("not-ready").await;
    let source = Source::Checkpoint(checkpoint.id.clone());
    let with = |start: &str| NewVersion {
        start_cmd: Some(start.to_owned()),
        ready_cmd: Some("echo not listening yet; exit 3".to_owned()),
        ..version_of(source.clone())
    };

    let error = template.refused(&with("sleep 1000")).await;
    let ended = template.refused(&with("echo no port is free >&2; exit 4")).await;

    assert_eq!(ended.code, "not_ready");
    assert!(ended.message.contains("status 4") && ended.message.contains("no port is free"), "{}", ended.message);

    assert_eq!(error.code, "not_ready");
    assert!(error.message.contains("status 3"), "how it ended is not said: {}", error.message);
    let version = template.show("1").await.expect("the version is there");
    assert!(template.log(&version).await.contains("not listening yet"), "what it printed is not in the log");
    host.has_no_version(&version.id).await;
    let refused = host.try_sandbox(&template.sandbox_of("1")).await.err().expect("it is not ready");
    assert_eq!(refused.code(), Some("invalid_state"), "{refused}");
}

async fn no_team_sees_what_another_has_built_until_it_is_public() {
    let host = Host::shared();
    let checkpoint = plain(host).await;
    let template = host.template("of-one-team").await;
    let version = template.build(&version_of(Source::Checkpoint(checkpoint.id.clone()))).await;
    let other = host.client_of_one();
    let slug = template.slug.as_str();
    let path = format!("/templates/{slug}");

    not_found(other.template(slug).await);
    not_found(other.versions(slug).await);
    not_found(other.version(slug, "1").await);
    not_found(other.build_log(slug, "1").await);
    not_found(other.delete_version(slug, "1").await);
    not_found(other.delete_template(slug).await);
    not_found(other.cancel_build(slug, "1").await);
    not_found(other.build_version(slug, &version_of(Source::Checkpoint(checkpoint.id.clone()))).await);
    not_found(other.call(Method::PATCH, &path, Some(json!({"visibility": "public"}))).await);
    for name in [slug.to_owned(), format!("{slug}:1"), format!("{slug}:{}", version.id)] {
        not_found(other.create(&CreateSandbox { template: Some(name), ..small() }).await);
    }
    assert!(!slugs(&other).await.iter().any(|name| name.contains(slug)));
    // Nor does anything of the one become a template of the other.
    let own = support::Template::of(&other, "of-the-other").await;
    not_found(other.build_version(&own.slug, &version_of(Source::Checkpoint(checkpoint.id.clone()))).await);
    let sandbox = host.sandbox().await;
    not_found(other.build_version(&own.slug, &version_of(Source::Sandbox(sandbox.id.clone()))).await);

    host.client.call(Method::PATCH, &path, Some(json!({"visibility": "public"}))).await.expect("it is changed");

    let public = slugs(&other).await.into_iter().find(|name| name.ends_with(&format!("/{slug}"))).expect("it is seen");
    let started = Sandbox::create(&other, &CreateSandbox { template: Some(public.clone()), ..small() }).await;
    assert_eq!(started.expect("it may be started").out("echo well").await, "well\n");
    for refused in [other.delete_version(&public, "1").await, other.build_log(&public, "1").await.map(drop)] {
        assert_eq!(refused.expect_err("it is another team's").status(), Some(403));
    }
}

async fn a_build_that_is_cancelled_leaves_nothing() {
    let host = Host::shared();
    let template = host.template("cancelled").await;
    let checkpoint = plain(host).await;
    let before = host.inventory().await;
    let version = template.begin(&slow(&checkpoint)).await;
    template.once(&version, "is being warmed", |state| state == BuildState::Warming).await;

    host.client.cancel_build(&template.slug, "1").await.expect("it is cancelled");

    assert_eq!(template.end_of(&version).await.state, BuildState::Cancelled);
    let again = host.client.cancel_build(&template.slug, "1").await.expect_err("it has ended");
    assert_eq!(again.code(), Some("invalid_state"));
    host.holds_what_it_held(&before).await;
}

async fn an_agent_that_is_killed_leaves_no_build_under_way() {
    let host = Host::shared();
    let template = host.template("interrupted").await;
    let checkpoint = plain(host).await;
    for under_way in [BuildState::Queued, BuildState::Warming] {
        let version = template.begin(&slow(&checkpoint)).await;
        template.once(&version, "is under way", |state| state == under_way || state == BuildState::Warming).await;

        host.kill_agent().await;

        let ended = template.end_of(&version).await;
        let name = ended.number.to_string();
        match ended.state {
            BuildState::Ready => {
                let started = host.sandbox_with(&template.sandbox_of(&name)).await;
                started.out(ASK).await;
                host.leaves_nothing(started).await;
            }
            BuildState::Failed => {
                assert_eq!(ended.error.expect("it says why").code, "host_restarted");
                host.has_no_version(&version.id).await;
            }
            other => panic!("it ended {other:?}"),
        }
    }
}

/// A version whose start takes a while.
fn slow(checkpoint: &Checkpoint) -> NewVersion {
    let source = Source::Checkpoint(checkpoint.id.clone());
    let start = format!("sleep 20; {SERVER}");
    NewVersion { start_cmd: Some(start), ready_cmd: Some(ASK.into()), ..version_of(source) }
}

/// A sandbox with files of every kind, and a checkpoint of its disk.
async fn furnished(host: &'static Host) -> (Sandbox, Checkpoint) {
    let sandbox = host.sandbox().await;
    let furnished = sandbox.root_sh(FURNISH).await;
    assert_eq!(furnished.end.exit_code, 0, "{}", support::text(&furnished.stderr));
    let checkpoint = sandbox.checkpoint(false).await.expect("the checkpoint is taken");
    (sandbox, checkpoint)
}

/// A checkpoint of a sandbox that has done nothing.
async fn plain(host: &'static Host) -> Checkpoint {
    let sandbox = host.sandbox().await;
    sandbox.checkpoint(false).await.expect("the checkpoint is taken")
}

async fn start_of(sandbox: &Sandbox) -> StartKind {
    Host::shared().agent_view(&sandbox.id).await.expect("the agent answers").start
}

async fn slugs(client: &Client) -> Vec<String> {
    client
        .templates()
        .await
        .expect("a list")
        .into_iter()
        .map(|template: sandpiper::client::Template| template.slug)
        .collect()
}

fn not_found<T>(outcome: Result<T, ClientError>) {
    match outcome {
        Ok(_) => panic!("another team's template was found"),
        Err(error) => assert_eq!(error.status(), Some(404), "{error}"),
    }
}
