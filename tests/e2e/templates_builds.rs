//! Versions that a machine builds: of images, archives and Dockerfiles, from a registry of the tests' own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use reqwest::Method;
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
        a_secret_is_there_for_its_step_and_nowhere_else,
        an_image_without_a_shell_is_refused_with_what_is_missing,
        a_step_that_fails_is_named_and_ends_the_command_with_its_reason,
        a_build_reaches_what_its_policy_allows,
        steps_on_top_of_a_version_leave_that_as_it_is,
        the_command_line_of_e2b_builds_lists_publishes_and_deletes,
        the_same_build_again_has_the_disk_and_the_warm_snapshot_of_the_first,
    ],
    alone: [
        ctrl_c_ends_the_build_and_leaves_nothing,
        an_agent_that_is_killed_while_a_machine_builds_keeps_the_cache,
    ],
}

/// As the one that the tests' registry has, and nothing else.
fn dockerfile(text: &str) -> Source {
    Registry::shared();
    let text = format!("FROM {}\n{text}", registry::SMALL);
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
        registry::SMALL
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
    let said =
        started.out("id -u; pwd; echo $COLOUR; echo $PATH; echo 1 > version && ls -l version | cut -c1-10").await;
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
    std::fs::write(folder.path().join("Dockerfile"), format!("FROM {}\nRUN echo kept >/kept\n", registry::SMALL))
        .expect("a file");
    registry.build(folder.path(), NAME);
    // What `docker save` writes is tried where it is read, in the builder's own tests.
    let file = folder.path().join("image.tar");
    registry.save(NAME, "oci-archive", &file);
    registry.remove(NAME);
    let template = host.template_of_the_cli("of-a-file");

    let built = cli(host, &["--archive", file.to_str().expect("text"), "-t", &template.slug]);

    assert_eq!(printed(&built), "of-a-file:1\n");
    let started = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(started.out("cat /kept").await, "kept\n");
}

/// The README's four lines, with an image that is there.
async fn a_folder_becomes_a_server_that_answers_at_once() {
    let host = Host::shared();
    let context = context(&format!("FROM {}\nWORKDIR /srv/app\nCOPY . .\nENV PORT=3000\n", registry::SMALL));
    std::fs::write(context.path().join("page"), "a page\n").unwrap();
    std::fs::write(context.path().join("notes"), "for nobody").unwrap();
    std::fs::write(context.path().join(".dockerignore"), "notes\n").unwrap();
    let template = host.template_of_the_cli("of-a-folder");
    let ask = "wget -q -O - http://127.0.0.1:3000/page";

    let start = ["--start", "exec httpd -f -p 127.0.0.1:$PORT", "--ready", ask, "--memory", "256"];
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

async fn the_command_line_of_e2b_builds_lists_publishes_and_deletes() {
    const PAGE: u64 = 123_457;
    let program = Path::new("/var/cache/sandpiper/sdks/cli/node_modules/@e2b/cli/dist/index.js");
    if !program.exists() {
        println!("SKIPPED: the command line of E2B: it is not installed");
        return;
    }
    let host = Host::shared();
    let context = context(&format!("FROM {}\nCOPY page /srv/\nRUN wc -c </srv/page >/srv/length\n", registry::SMALL));
    // Of a length that tells what the command line sends from all else that is sent.
    let page: Vec<u8> = (0..PAGE).map(|_| rand::random::<u8>()).collect();
    std::fs::write(context.path().join("page"), page).unwrap();
    let e2b = |arguments: &[&str]| {
        let mut command = Command::new("node");
        command.arg(program).arg("template").args(arguments).stdin(Stdio::null());
        command.env("E2B_API_KEY", host.api_key().replacen("spk_", "e2b_", 1)).env("E2B_API_URL", &host.api_url);
        let ran = command.output().expect("node runs");
        assert!(ran.status.success(), "{arguments:?}: {ran:?}");
        support::text(&ran.stdout).to_owned()
    };
    let template = host.template_of_the_cli("of-e2b");
    let is_listed = || e2b(&["list", "--format", "json"]).contains("of-e2b");

    let path = context.path().to_str().unwrap();
    let said = e2b(&["create", "of-e2b", "--path", path, "--cpu-count", "1", "--memory-mb", "256"]);
    assert!(said.contains("wc -c"), "the steps are not shown: {said}");
    assert!(is_listed());
    let started = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(started.out("pwd; id -un; cat /srv/length").await, format!("/home/user\nuser\n{PAGE}\n"));
    drop(started);

    e2b(&["publish", "--yes", "of-e2b"]);
    let shown = host.cli(&["--json", "template", "show", "of-e2b"]).output().expect("the command runs");
    assert!(printed(&shown).contains(r#""visibility":"public""#), "{}", printed(&shown));
    e2b(&["delete", "--yes", "of-e2b"]);
    assert!(!is_listed());

    // It leaves what it sent for the next build.
    let sent = host.client.call(Method::GET, "/templates/uploads?limit=100", None).await.unwrap();
    let uploads = sent["uploads"].as_array().unwrap().iter();
    for one in uploads.filter(|one| (PAGE..2 * PAGE).contains(&one["bytes"].as_u64().unwrap())) {
        host.client.delete_upload(one["id"].as_str().unwrap()).await.unwrap();
    }
}

async fn a_secret_is_there_for_its_step_and_nowhere_else() {
    const SECRET: &str = "hunter2-of-the-test";
    let host = Host::shared();
    let context = context(&format!(
        "FROM {}\nRUN --mount=type=secret,id=token sha256sum </run/secrets/token >/digest\n\
         RUN test ! -e /run/secrets/token\nRUN echo done >/done\n",
        registry::SMALL
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
    let text = format!("FROM {0} AS tools\nFROM scratch\nCOPY --from=tools /usr/bin/env /env\n", registry::SMALL);

    let error = template.refused(&version_of(Source::Dockerfile(Dockerfile { text: Some(text), ..contents }))).await;

    assert_eq!(error.code, "no_shell");
    assert!(error.message.contains("/bin/sh"), "{}", error.message);
}

async fn a_step_that_fails_is_named_and_ends_the_command_with_its_reason() {
    let host = Host::shared();
    let context = context(&format!("FROM {}\nRUN echo fine\nRUN echo 'no such thing' >&2; exit 7\n", registry::SMALL));
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
    let connect = "RUN nc -w 20 www.example.test 80 </dev/null";
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

async fn the_same_build_again_has_the_disk_and_the_warm_snapshot_of_the_first() {
    let host = Host::shared();
    let template = host.template("twice").await;
    let source = || dockerfile("RUN cat /proc/sys/kernel/random/uuid >/made\n");
    let first = template.build(&version_of(source())).await;
    let second = template.build(&version_of(source())).await;

    let log = template.log(&second).await;
    assert!(log.contains("its file system is used again") && !log.contains("starting a first sandbox"), "{log}");
    let of_first = host.sandbox_with(&template.sandbox_of(&first.id)).await;
    let made = of_first.out("cat /made; echo changed >/tmp/made").await;
    of_first.delete().await;
    template.delete_version(&first.id).await.expect("no sandbox is made of it");
    let of_second = host.sandbox_with(&template.sandbox_of(&second.id)).await;
    assert_eq!(host.agent_view(&of_second.id).await.expect("the agent answers").start, StartKind::Warm);
    assert_eq!(of_second.out("cat /made; test ! -e /tmp/made").await, made);
}

async fn ctrl_c_ends_the_build_and_leaves_nothing() {
    let host = Host::shared();
    // The team's cache is there from now on.
    let template = host.template("interrupted-build").await;
    template.build(&version_of(dockerfile("RUN echo first\n"))).await;
    let context = context(&format!("FROM {}\nRUN echo begun; sleep 1000\n", registry::SMALL));
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
