//! Versions that a machine builds: of images, archives and Dockerfiles, from a registry of the tests' own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use sandpiper::client::{CreateSandbox, NetworkPolicy, NewVersion, Source};
use sandpiper_protocol::agent::StartKind;
use sandpiper_protocol::template::{BuildState, Dockerfile, Secrets};
use support::registry::{self, Registry};
use support::{Host, version_of};

tests! {
    shared: [
        an_image_of_a_registry_becomes_a_version_with_its_settings,
        an_image_in_a_file_becomes_a_version,
        a_folder_becomes_a_server_that_answers_at_once,
        a_step_that_has_not_changed_is_not_run_again,
        a_secret_is_there_for_its_step_and_nowhere_else,
        an_image_without_a_shell_is_refused_with_what_is_missing,
        a_step_that_fails_is_named_and_ends_the_command_with_its_reason,
        a_build_reaches_what_its_policy_allows,
        steps_on_top_of_a_version_leave_that_as_it_is,
    ],
    alone: [
        ctrl_c_ends_the_build_and_leaves_nothing,
        an_agent_that_is_killed_while_a_machine_builds_keeps_the_cache,
    ],
}

/// As the one that the tests' registry has, and nothing else.
fn dockerfile(text: &str) -> Source {
    let text = format!("FROM {}\n{text}", registry::BASE);
    Source::Dockerfile(Dockerfile {
        context: None,
        text: Some(text),
        path: None,
        target: None,
        args: [].into(),
        secrets: Secrets::default(),
        credentials: [].into(),
        no_cache: false,
    })
}

async fn an_image_of_a_registry_becomes_a_version_with_its_settings() {
    const NAME: &str = "registry.example.test:5000/settings:1";
    let (host, registry) = (Host::shared(), Registry::shared());
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "FROM {}\nRUN echo 'app:x:1234:1234::/srv/app:/bin/sh' >>/etc/passwd\nENV COLOUR=teal PATH=/opt/bin:/usr/bin:/bin\n\
         WORKDIR /srv/app\nRUN chown 1234 .\nUSER app\nCMD [\"serve\", \"--port\", \"80\"]\n",
        registry::BASE
    );
    std::fs::write(folder.path().join("Dockerfile"), text).expect("a file");
    registry.build(folder.path(), NAME);
    registry.push(NAME);
    registry.remove(NAME);
    let template = host.template("of-an-image").await;

    let version = template.build(&version_of(Source::Image { reference: NAME.into(), credentials: None })).await;

    let digest = version.raw["images"][NAME].as_str().expect("the digest is recorded");
    assert!(digest.starts_with("sha256:") && digest.len() == 71, "{digest}");
    assert_eq!(version.raw["command"], "serve --port 80");
    let started = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(host.agent_view(&started.id).await.expect("the agent answers").start, StartKind::Warm);
    let said = started
        .out("id -u; pwd; echo $COLOUR; echo $PATH; cat /etc/debian_version > version && ls -l version | cut -c1-10")
        .await;
    assert_eq!(said, "1234\n/srv/app\nteal\n/opt/bin:/usr/bin:/bin\n-rw-r--r--\n");
    // What a request says goes before what the image says.
    let envs = [("COLOUR".to_owned(), "red".to_owned())].into();
    let own = host.sandbox_with(&CreateSandbox { envs, ..template.sandbox() }).await;
    assert_eq!(own.out("echo $COLOUR").await, "red\n");
}

async fn an_image_in_a_file_becomes_a_version() {
    const NAME: &str = "localhost/of-a-file:1";
    let (host, registry) = (Host::shared(), Registry::shared());
    let folder = tempfile::tempdir_in("/var/lib/sandpiper").expect("a folder");
    std::fs::write(folder.path().join("Dockerfile"), format!("FROM {}\nRUN echo kept >/kept\n", registry::BASE))
        .unwrap();
    registry.build(folder.path(), NAME);
    for kind in ["oci-archive", "docker-archive"] {
        let file = folder.path().join(format!("{kind}.tar"));
        registry.save(NAME, kind, &file);
        let template = host.template_of_the_cli(&format!("of-{kind}"));

        let built = cli(host, &["--archive", file.to_str().unwrap(), "-t", &template.slug]);

        assert_eq!(printed(&built), format!("{}:1\n", template.slug), "{kind}");
        let started = host.sandbox_with(&template.sandbox()).await;
        assert_eq!(started.out("cat /kept").await, "kept\n", "{kind}");
    }
    registry.remove(NAME);
}

/// The README's four lines, with an image that is there.
async fn a_folder_becomes_a_server_that_answers_at_once() {
    let host = Host::shared();
    let context = context(&format!("FROM {}\nWORKDIR /srv/app\nCOPY . .\nENV PORT=3000\n", registry::BASE));
    std::fs::write(context.path().join("page"), "a page\n").unwrap();
    std::fs::write(context.path().join("notes"), "for nobody").unwrap();
    std::fs::write(context.path().join(".dockerignore"), "notes\n").unwrap();
    let template = host.template_of_the_cli("of-a-folder");
    let ask = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:3000/page\").read().decode(), end=\"\")'";

    let start = ["--start", "exec python3 -m http.server $PORT --bind 127.0.0.1", "--ready", ask, "--memory", "256"];
    let built = cli(host, &[&[context.path().to_str().unwrap(), "-t", "of-a-folder:latest"], &start[..]].concat());

    assert_eq!(printed(&built), "of-a-folder:1\n");
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(said.contains("COPY . ."), "the steps are not shown: {said}");
    let started = host.sandbox_with(&template.sandbox_of("latest")).await;
    assert_eq!(host.agent_view(&started.id).await.expect("the agent answers").start, StartKind::Warm);
    assert_eq!(started.out(ask).await, "a page\n");
    assert_eq!(started.out("ls -A").await, ".dockerignore\nDockerfile\npage\n");
    let listed = host.cli(&["template", "ls"]).output().expect("the command runs");
    assert!(printed(&listed).contains("of-a-folder"));
    let log = host.cli(&["template", "logs", "-f", "of-a-folder:latest"]).output().expect("the command runs");
    assert!(printed(&log).contains("COPY . ."));
}

async fn a_step_that_has_not_changed_is_not_run_again() {
    let host = Host::shared();
    let template = host.template("cached").await;
    let first = "RUN cat /proc/sys/kernel/random/uuid >/first\nRUN echo 1 >/second\n";
    let number = async |text: &str, no_cache: bool| {
        let Source::Dockerfile(contents) = dockerfile(text) else { panic!("a Dockerfile") };
        let version = template.build(&version_of(Source::Dockerfile(Dockerfile { no_cache, ..contents }))).await;
        let started = host.sandbox_with(&template.sandbox_of(&version.id)).await;
        started.out("cat /first").await
    };

    let cold = number(first, false).await;
    let cached = number(first, false).await;
    let changed_after = number(&first.replace("echo 1", "echo 2"), false).await;
    let changed_before = number(&format!("RUN true\n{first}"), false).await;
    let anew = number(first, true).await;

    assert_eq!((&cached, &changed_after), (&cold, &cold), "the first step was run again");
    assert!(cold != changed_before && cold != anew, "the first step was not run again");
}

async fn a_secret_is_there_for_its_step_and_nowhere_else() {
    const SECRET: &str = "hunter2-of-the-test";
    let host = Host::shared();
    let context = context(&format!(
        "FROM {}\nRUN --mount=type=secret,id=token sha256sum </run/secrets/token >/digest\n\
         RUN test ! -e /run/secrets/token\nRUN echo done >/done\n",
        registry::BASE
    ));
    let template = host.template_of_the_cli("secretive");

    let mut command = host.cli(&[
        "template",
        "build",
        context.path().to_str().unwrap(),
        "-t",
        "secretive",
        "--secret",
        "id=token,env=TOKEN",
    ]);
    let built = command.env("TOKEN", SECRET).output().expect("the command runs");

    printed(&built);
    let version = template.show("1").await.expect("the version is there");
    assert!(!template.log(&version).await.contains(SECRET) && !version.raw.to_string().contains(SECRET));
    let started = host.sandbox_with(&template.sandbox()).await;
    let expected = Command::new("sh").args(["-c", &format!("printf %s {SECRET} | sha256sum")]).output().unwrap();
    assert_eq!(started.out("cat /digest").await, support::text(&expected.stdout));
    let found =
        started.root_sh(&format!("grep -rlF {SECRET} / --exclude-dir=proc --exclude-dir=sys 2>/dev/null")).await;
    assert_eq!(support::text(&found.stdout), "", "the secret is in the version");
    for file in [host.log().to_owned(), Path::new("/var/lib/sandpiper/tests/builds").to_owned()] {
        let found = Command::new("grep").args(["-rlF", SECRET]).arg(&file).output().expect("grep runs");
        assert_eq!(support::text(&found.stdout), "", "the secret is on the host");
    }
}

async fn an_image_without_a_shell_is_refused_with_what_is_missing() {
    let host = Host::shared();
    let template = host.template("without-a-shell").await;
    let Source::Dockerfile(contents) = dockerfile("") else { panic!("a Dockerfile") };
    let text = format!("FROM {0} AS tools\nFROM scratch\nCOPY --from=tools /usr/bin/env /env\n", registry::BASE);

    let error = template.refused(&version_of(Source::Dockerfile(Dockerfile { text: Some(text), ..contents }))).await;

    assert_eq!(error.code, "no_shell");
    assert!(error.message.contains("/bin/sh"), "{}", error.message);
}

async fn a_step_that_fails_is_named_and_ends_the_command_with_its_reason() {
    let host = Host::shared();
    let context = context(&format!("FROM {}\nRUN echo fine\nRUN echo 'no such thing' >&2; exit 7\n", registry::BASE));
    let template = host.template_of_the_cli("failing");

    let failed = cli(host, &[context.path().to_str().unwrap(), "-t", "failing"]);

    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: failing:1 could not be built") && last.contains("exit 7"), "{said}");
    assert!(said.contains("no such thing"), "{said}");
    let version = template.show("1").await.expect("the version is there");
    let error = version.error.expect("it says why");
    assert_eq!((error.code.as_str(), error.step), ("step_failed", Some(3)));
    host.has_no_version(&version.id).await;
    let missing = Source::Image { reference: format!("{}/nothing:here", registry::HOST), credentials: None };
    assert_eq!(template.refused(&version_of(missing)).await.code, "source_refused");
}

async fn a_build_reaches_what_its_policy_allows() {
    let host = Host::shared();
    let template = host.template("held").await;
    let connect = "RUN python3 -c \"import socket; socket.create_connection(('www.example.test', 80), 20)\"";
    let nothing = NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() };
    let registry_only = NetworkPolicy { allow_out: vec![registry::HOST.into()], ..nothing.clone() };
    let with = |text: &str, network: &NetworkPolicy| {
        let Source::Dockerfile(contents) = dockerfile(text) else { panic!("a Dockerfile") };
        let source = Source::Dockerfile(Dockerfile { no_cache: true, ..contents });
        NewVersion { network: Some(network.clone()), ..version_of(source) }
    };

    let unreachable = template
        .refused(&NewVersion {
            network: Some(nothing),
            ..version_of(Source::Image { reference: format!("{}/other:1", registry::HOST), credentials: None })
        })
        .await;
    let held = template.refused(&with(connect, &registry_only)).await;
    template.build(&with(connect, &NetworkPolicy::default())).await;

    assert_eq!((unreachable.code.as_str(), held.code.as_str()), ("source_unreachable", "step_failed"));
}

async fn steps_on_top_of_a_version_leave_that_as_it_is() {
    let host = Host::shared();
    let base = host.template("below").await;
    base.build(&version_of(dockerfile("RUN echo below >/which\n"))).await;
    let template = host.template("above").await;
    let steps = serde_json::json!({"source": {"steps": {
        "from": {"template": "below"},
        "steps": [
            {"step": "run", "command": "cat /which >/before; echo above >/which; id -u >/user", "user": "root"},
            {"step": "env", "env": {"COLOUR": "teal"}},
            {"step": "workdir", "path": "/srv/steps"},
        ],
    }}, "runtime_baseline": {"cpu": 1, "memory_mb": 256}});

    let begun =
        host.client.call(reqwest::Method::POST, "/templates/above/versions", Some(steps)).await.expect("it begins");
    let version = template.show(begun["id"].as_str().expect("an id")).await.expect("the version is there");
    let ended = template.end_of(&version).await;

    assert_eq!(ended.state, BuildState::Ready, "{:?}", ended.error);
    let above = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(above.out("cat /before /which /user; echo $COLOUR; pwd").await, "below\nabove\n0\nteal\n/srv/steps\n");
    let below = host.sandbox_with(&base.sandbox()).await;
    assert_eq!(below.out("cat /which; test ! -e /before").await, "below\n");
    below.delete().await;
    // What the one has of the other stays, whatever becomes of that.
    base.delete_version("1").await.expect("no sandbox is made of it");
    assert_eq!(above.out("cat /before /which").await, "below\nabove\n");
}

async fn ctrl_c_ends_the_build_and_leaves_nothing() {
    let host = Host::shared();
    // The team's cache is there from now on.
    let template = host.template("interrupted-build").await;
    template.build(&version_of(dockerfile("RUN echo first\n"))).await;
    let context = context(&format!("FROM {}\nRUN echo begun; sleep 1000\n", registry::BASE));
    let before = host.inventory().await;
    let mut command = host.cli(&["template", "build", context.path().to_str().unwrap(), "-t", "interrupted-build"]);
    let building = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command runs");
    support::wait_until("the step runs", || async {
        let version = template.show("2").await.map_err(|error| error.to_string())?;
        let log = template.log(&version).await;
        if log.lines().any(|line| line.trim() == "begun") { Ok(()) } else { Err(log) }
    })
    .await;

    let pid = nix::unistd::Pid::from_raw(building.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it is ours");
    let ended = building.wait_with_output().expect("it ends");

    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let version = template.show("2").await.expect("the version is there");
    assert_eq!(template.end_of(&version).await.state, BuildState::Cancelled);
    host.holds_what_it_held(&before).await;
}

async fn an_agent_that_is_killed_while_a_machine_builds_keeps_the_cache() {
    let host = Host::shared();
    let template = host.template("killed-build").await;
    let first = "RUN cat /proc/sys/kernel/random/uuid >/first\n";
    let kept = template.build(&version_of(dockerfile(first))).await;
    let started = host.sandbox_with(&template.sandbox_of(&kept.id)).await;
    let number = started.out("cat /first").await;
    started.delete().await;
    let building = template.begin(&version_of(dockerfile(&format!("{first}RUN echo begun; sleep 1000\n")))).await;
    template.once(&building, "is being built", |state| state == BuildState::Building).await;

    host.kill_agent().await;

    let ended = template.end_of(&building).await;
    assert_eq!((ended.state, ended.error.expect("it says why").code.as_str()), (BuildState::Failed, "host_restarted"));
    host.has_no_version(&building.id).await;
    let again = template.build(&version_of(dockerfile(&format!("{first}RUN echo more\n")))).await;
    let started = host.sandbox_with(&template.sandbox_of(&again.id)).await;
    assert_eq!(started.out("cat /first").await, number, "the cache was lost");
}

/// A folder with a Dockerfile.
fn context(dockerfile: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("Dockerfile"), dockerfile).expect("a file");
    Registry::shared();
    folder
}

fn cli(host: &Host, arguments: &[&str]) -> Output {
    host.cli(&[&["template", "build"], arguments].concat()).output().expect("the command runs")
}

/// What a command printed, which must have succeeded.
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    support::text(&output.stdout)
}
