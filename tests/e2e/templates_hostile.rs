//! Builds of whoever means harm: contexts, images and Dockerfiles that harm their own build at most, which fails with a
//! sentence that says why.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use sandpiper::client::{Source, Version};
use sandpiper_protocol::template::{BuildState, Dockerfile, Secrets};
use support::internet::{EVIL, Internet, PRIVATE};
use support::registry::{self, Registry};
use support::{Bystander, Host, Template, version_of};

tests! {
    shared: [
        a_context_that_leads_out_of_itself_is_refused_or_stays_inside,
        a_dockerfile_that_exhausts_its_machine_fails_alone,
        a_dockerfile_does_not_reach_the_host_or_what_is_around_it,
        a_log_without_an_end_is_cut_off,
    ],
    alone: [],
}

/// Writes a tar archive to standard output.
const TAR: &str = "import io, os, sys, tarfile
tar = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')
def add(name, kind=tarfile.REGTYPE, to='', content=b'', mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size, entry.mode = kind, to, len(content), mode
    tar.addfile(entry, io.BytesIO(content))
DOCKERFILE = b'FROM %s\\nCOPY . /srv/context/\\n'
";

/// Fails if anything is reached but the first of its arguments, which is public. `nc` runs the program once it is connected.
const LOOK: &str = "#!/bin/sh
reaches() { nc -w 10 $1 $2 -e /bin/true; }
public=$1 && shift
gateway=$(route -n | awk '$1 == \"0.0.0.0\" { print $2 }')
for address in $*; do ! reaches $address 80 || exit 1; done
! reaches ${gateway:?} 17070 || exit 2
! reaches 127.0.0.1 17070 || exit 3
! /srv/context/reach-host || exit 4
reaches $public 80 || exit 5
";

/// Succeeds if the host is reached by vsock, which has no other tool.
const REACH_HOST: &str = "#include <sys/socket.h>
#include <linux/vm_sockets.h>
int main(void) {
    struct sockaddr_vm host = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = 22 };
    int connection = socket(AF_VSOCK, SOCK_STREAM, 0);
    return connection < 0 ? 2 : connect(connection, (struct sockaddr *)&host, sizeof host) != 0;
}
";

async fn a_context_that_leads_out_of_itself_is_refused_or_stays_inside() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-context").await;
    let outside = "/usr/local/planted-by-a-context";
    // More of them are tried where contexts are unpacked, in the builder's own tests.
    let ways = [
        "add('../../../../..%s' % OUT, content=b'x')",
        "add('link', tarfile.SYMTYPE, '/usr/local'); add('link/planted-by-a-context', content=b'x')",
        "add('hard', tarfile.LNKTYPE, '/etc/passwd'); add('hard', content=b'x')",
        "add('Dockerfile', tarfile.SYMTYPE, '../../../../../etc/shadow')",
    ];
    for way in ways {
        let script =
            format!("OUT = {outside:?}\nadd('Dockerfile', content=DOCKERFILE % b'{}')\n{way}", registry::SMALL);

        let (version, _) = build(host, &template, &script).await;

        if version.state == BuildState::Ready {
            let sandbox = host.sandbox_with(&template.sandbox_of(&version.id)).await;
            let look = format!("test ! -e {outside} && test ! -s /srv/context/hard && head -c 4 /etc/passwd");
            assert_eq!(sandbox.out(&look).await, "root", "{way}");
            let shown = sandbox
                .root_sh("cat /srv/context/Dockerfile /srv/context/.dockerignore 2>/dev/null | head -c 2000")
                .await;
            let shown = support::text(&shown.stdout);
            assert!(!shown.contains("root:") && !shown.contains("SANDPIPER"), "{way}: {shown}");
            sandbox.delete().await;
        } else {
            let error = version.error.expect("it says why");
            assert!(["source_refused", "step_failed"].contains(&error.code.as_str()), "{way}: {error:?}");
            assert!(!error.message.contains("root:"), "{way}: {error:?}");
        }
        bystander.is_unharmed(way).await;
    }
}

async fn a_dockerfile_that_exhausts_its_machine_fails_alone() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-machine").await;
    for (step, codes) in [
        ("RUN tail /dev/zero", &["memory_exhausted", "step_failed"][..]),
        ("RUN echo c >/proc/sysrq-trigger; echo b >/proc/sysrq-trigger; fallocate -l 400G /big", &["disk_full"][..]),
        (
            "RUN for disk in /dev/vd?; do head -c 1M /dev/zero >$disk; done; exit 1",
            &["step_failed", "disk_full", "host_failed"][..],
        ),
    ] {
        let error = template.refused(&version_of(steps(step))).await;

        assert!(codes.contains(&error.code.as_str()) && !error.message.is_empty(), "{step}: {error:?}");
        bystander.is_unharmed(step).await;
    }
    // And the team's cache is one that the next build can use.
    template.build(&version_of(steps("RUN echo well >/well"))).await;
}

async fn a_dockerfile_does_not_reach_the_host_or_what_is_around_it() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-network").await;
    let before = Internet::shared().arrivals_of(&PRIVATE).len();
    let step = format!("RUN sh /srv/context/look {EVIL} {}\n", PRIVATE.join(" "));
    let dockerfile = format!("FROM {}\nCOPY . /srv/context/\n{step}", registry::SMALL);
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path());
    let script = format!(
        "add('Dockerfile', content={dockerfile:?}.encode())\nadd('look', content={LOOK:?}.encode())\n\
         add('reach-host', content=open({program:?}, 'rb').read(), mode=0o755)"
    );

    let (version, said) = build(host, &template, &script).await;

    assert_eq!(version.state, BuildState::Ready, "{:?}: {said}", version.error);
    assert_eq!(Internet::shared().arrivals_of(&PRIVATE).len(), before);
    bystander.is_unharmed("a build that looked around").await;
}

async fn a_log_without_an_end_is_cut_off() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-log").await;

    let error = template.refused(&version_of(steps("RUN yes this is said again and again"))).await;

    assert_eq!(error.code, "log_full", "{}", error.message);
    let one_line =
        template.build(&version_of(steps("RUN head -c 5M /dev/zero | tr '\\0' x; printf '\\033[2J\\r\\007'"))).await;
    let log = template.log(&one_line).await;
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "control characters are in the log");
    bystander.is_unharmed("a log without an end").await;
}

/// [`REACH_HOST`], for a machine that has nothing else.
fn compiled(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("reach-host.c"), folder.join("reach-host"));
    std::fs::write(&source, REACH_HOST).expect("a file");
    let compiled = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).output().expect("cc runs");
    assert!(compiled.status.success(), "{}", support::text(&compiled.stderr));
    program
}

/// Builds an archive that a script writes, and gives what came of it, and what it said.
async fn build(host: &'static Host, template: &Template, script: &str) -> (Version, String) {
    let script = format!("{TAR}{script}\ntar.close()\n");
    build_of(host, template, output_of("python3", &["-c", &script])).await
}

/// Builds a context, and gives what came of it, and what it said.
async fn build_of(
    host: &'static Host,
    template: &Template,
    context: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> (Version, String) {
    Registry::shared();
    let upload = host.client.upload(None, context, |_| {}).await.expect("it is taken");
    let context = Dockerfile { context: Some(upload.id.as_str().into()), ..empty() };
    let version = template.end_of(&template.begin(&version_of(Source::Dockerfile(context))).await).await;
    host.client.delete_upload(&upload.id).await.expect("it is removed");
    let log = template.log(&version).await;
    (version, log)
}

/// A Dockerfile that needs no context.
fn steps(steps: &str) -> Source {
    Registry::shared();
    Source::Dockerfile(Dockerfile { text: Some(format!("FROM {}\n{steps}\n", registry::SMALL)), ..empty() })
}

fn empty() -> Dockerfile {
    Dockerfile {
        context: None,
        text: None,
        path: None,
        target: None,
        args: [].into(),
        secrets: Secrets::default(),
        credentials: [].into(),
        no_cache: false,
    }
}

/// What a program prints, as it prints it. One that nobody reads any more ends.
fn output_of(program: &str, arguments: &[&str]) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut command = tokio::process::Command::new(program);
    let child =
        command.args(arguments).stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().expect("it runs");
    stream::unfold((child, vec![0; 1 << 16]), async |(mut child, mut piece)| {
        let out = child.stdout.as_mut()?;
        match tokio::io::AsyncReadExt::read(out, &mut piece).await {
            Ok(0) => None,
            Ok(length) => Some((Ok(Bytes::copy_from_slice(&piece[..length])), (child, piece))),
            Err(error) => Some((Err(error), (child, piece))),
        }
    })
}
