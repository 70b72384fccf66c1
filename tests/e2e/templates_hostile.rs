//! Builds of whoever means harm: contexts, images and Dockerfiles that harm their own build at most, which fails with a
//! sentence that says why.

use std::io;

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
        a_context_with_more_entries_than_any_build_needs_comes_to_an_end,
        what_unpacks_to_more_than_the_disk_fails_alone,
        what_is_no_archive_is_said_to_be_none,
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

/// Writes a context with a file of 40 GiB of nothing, packed into some 40 MiB.
const BOMB: &str = "import gzip, sys, tarfile
big = tarfile.TarInfo('big')
big.size = 40 << 30
sys.stdout.buffer.write(gzip.compress(big.tobuf(tarfile.GNU_FORMAT)))
nothing = gzip.compress(bytes(64 << 20))
for _ in range(640):
    sys.stdout.buffer.write(nothing)
";

async fn a_context_that_leads_out_of_itself_is_refused_or_stays_inside() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-context").await;
    let outside = "/usr/local/planted-by-a-context";
    let ways = [
        "add('../../../../..%s' % OUT, content=b'x')",
        "add(OUT, content=b'x')",
        "add('/..%s' % OUT, content=b'x')",
        "add('link', tarfile.SYMTYPE, '/usr/local'); add('link/planted-by-a-context', content=b'x')",
        "add('up', tarfile.SYMTYPE, '../../../../../../usr'); add('up/local/planted-by-a-context', content=b'x')",
        "add('hard', tarfile.LNKTYPE, '/etc/passwd'); add('hard', content=b'x')",
        "add('hard', tarfile.LNKTYPE, '../../../../etc/shadow')",
        "add('device', tarfile.BLKTYPE); add('disk', tarfile.CHRTYPE)",
        "add('Dockerfile', tarfile.SYMTYPE, '/proc/self/environ')",
        "add('Dockerfile', tarfile.SYMTYPE, '../../../../../etc/shadow')",
        "add('.dockerignore', tarfile.SYMTYPE, '/etc/shadow')",
        "add('a/' * 2000 + 'deep', content=b'x')",
        "add('n' * 5000, content=b'x')",
    ];
    for way in ways {
        let script = format!("OUT = {outside:?}\nadd('Dockerfile', content=DOCKERFILE % b'{}')\n{way}", registry::BASE);

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

async fn a_context_with_more_entries_than_any_build_needs_comes_to_an_end() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-many").await;
    let dockerfile = format!("FROM {}\nCOPY Dockerfile /srv/\n", registry::BASE);

    let (version, _) = build_of(host, &template, many_entries(&dockerfile)).await;

    let error = version.error.expect("it is not built");
    assert_eq!(error.code, "source_refused", "{}", error.message);
    bystander.is_unharmed("a context with many entries").await;
}

async fn what_unpacks_to_more_than_the_disk_fails_alone() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-bomb").await;
    let fill =
        "RUN python3 -c \"import os; os.posix_fallocate(os.open('/big', os.O_CREAT | os.O_WRONLY), 0, 400 << 30)\"";

    let (bomb, _) = build_of(host, &template, output_of("python3", &["-c", BOMB])).await;
    let full = template.refused(&version_of(steps(fill))).await;

    let bomb = bomb.error.expect("it is not built");
    assert!(["source_refused", "disk_full"].contains(&bomb.code.as_str()), "{bomb:?}");
    assert_eq!(full.code, "disk_full", "{}", full.message);
    bystander.is_unharmed("what unpacks to 40 GiB").await;
}

async fn what_is_no_archive_is_said_to_be_none() {
    let host = Host::shared();
    let template = host.template("hostile-noise").await;
    for noise in ["head -c 3000000 /dev/urandom", "printf ''", "head -c 1000 /dev/zero", "printf 'PK\\003\\004'"] {
        let upload = host.client.upload(None, output_of("sh", &["-c", noise]), |_| {}).await.expect("it is taken");
        let context = Dockerfile { context: Some(upload.id.as_str().into()), ..empty() };

        for source in [Source::Archive(upload.id.clone()), Source::Dockerfile(context)] {
            let error = template.refused(&version_of(source)).await;
            assert_eq!(error.code, "source_refused", "{noise}: {}", error.message);
        }
        host.client.delete_upload(&upload.id).await.expect("it is removed");
    }
}

async fn a_dockerfile_that_exhausts_its_machine_fails_alone() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let template = host.template("hostile-machine").await;
    for (step, codes) in [
        (
            "RUN /bin/sh -c 'f() { f | f & }; f; sleep 60; exit 1'",
            &["step_failed", "memory_exhausted", "too_slow", "host_failed"][..],
        ),
        (
            "RUN python3 -c 'a = [bytes([7]) * (1 << 20) for _ in range(100000)]'",
            &["memory_exhausted", "step_failed"][..],
        ),
        ("RUN kill -9 -1; exit 1", &["step_failed", "host_failed"][..]),
        (
            "RUN echo c >/proc/sysrq-trigger; reboot -f; echo b >/proc/sysrq-trigger; exit 1",
            &["step_failed", "host_failed"][..],
        ),
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
    let connect = |address: &str, port: u16| {
        format!("RUN python3 -c \"import socket; socket.create_connection(('{address}', {port}), 10)\"")
    };
    let gateway = "RUN python3 -c \"import socket; g = [l.split()[2] for l in open('/proc/net/route') if l.split()[1] == '0' * 8][0]; \
                   socket.create_connection(('.'.join(str(b) for b in reversed(bytes.fromhex(g))), 17070), 10)\"";
    let vsock = "RUN python3 -c \"import socket; s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); s.settimeout(10); s.connect((2, 22))\"";
    let private = PRIVATE.map(|address| connect(address, 80));
    let others = [connect("127.0.0.1", 17070), gateway.to_owned(), vsock.to_owned()];
    for step in private.iter().chain(&others) {
        let error = template.refused(&version_of(steps(step))).await;
        assert_eq!(error.code, "step_failed", "{step}: {error:?}");
    }
    // What is public is reached: it was the address that mattered.
    template.build(&version_of(steps(&connect(EVIL, 80)))).await;

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

/// A context with a Dockerfile and more empty files than a build takes.
fn many_entries(dockerfile: &str) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let header = |path: &str, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_path(path).expect("a path");
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let mut first = [header("Dockerfile", dockerfile.len()), dockerfile.as_bytes().to_vec()].concat();
    first.resize(first.len().next_multiple_of(512), 0);
    let folder = move |number: usize| -> Vec<u8> {
        (0..1000).flat_map(|file| header(&format!("many/{number}/{file}"), 0)).collect()
    };
    let pieces = std::iter::once(first).chain((0..600).map(folder)).chain([vec![0; 1024]]);
    stream::iter(pieces.map(|piece| Ok(piece.into())))
}

/// A Dockerfile that needs no context.
fn steps(steps: &str) -> Source {
    Registry::shared();
    Source::Dockerfile(Dockerfile { text: Some(format!("FROM {}\n{steps}\n", registry::BASE)), ..empty() })
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
