//! Sandboxes that take over a machine which waited for them.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use sandpiper::client::{CreateSandbox, NetworkPolicy, NewVersion, Source};
use sandpiper_protocol::agent::StartKind;
use support::internet::Internet;
use support::{COUNTER, Dialogue, Host, REACHER, Sandbox, Template, Volume, small, version_of, wait_for};

use crate::warm::{IDENTITY, check_clock};

tests! {
    shared: [],
    alone: [
        a_machine_that_waited_serves_as_any_other,
        two_that_waited_share_nothing_that_should_be_their_own,
        a_guest_that_waited_has_the_hosts_clock,
        the_first_packet_meets_the_sandboxs_policy,
        a_later_tenant_finds_nothing_of_an_earlier_one,
        one_that_waited_is_paused_forked_and_kept_as_any_other,
        a_volume_is_mounted_in_one_that_waited,
        what_a_template_starts_stands_still_until_there_is_an_owner,
        what_a_tenants_template_does_at_a_login_is_not_done_while_it_waits,
        where_the_one_that_waits_is_dead_another_is_started,
        with_the_agent_those_that_wait_end,
    ],
}

/// Most that wait.
const MOST: u32 = 3;

/// The shared host, on which so many machines wait.
async fn host_with(waiting: u32) -> &'static Host {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    host.set_parking(MOST).await;
    for _ in 0..waiting {
        host.sandbox().await.delete().await;
    }
    host.wait_until_parked(waiting).await;
    host
}

async fn start_of(sandbox: &Sandbox) -> StartKind {
    Host::shared().agent_view(&sandbox.id).await.expect("the agent answers").start
}

async fn a_machine_that_waited_serves_as_any_other() {
    let host = host_with(1).await;

    let sandbox = host.sandbox().await;

    assert_eq!(start_of(&sandbox).await, StartKind::Parked);
    assert_eq!(sandbox.out("echo served > file; cat file; id -un; pwd").await, "served\nuser\n/home/user\n");
    sandbox.data_plane.write_file("other", b"up and down".to_vec(), None).await.unwrap();
    assert_eq!(sandbox.data_plane.read_file("other", None).await.unwrap(), b"up and down");
    // The next one is made ready meanwhile.
    host.wait_until_parked(2).await;
    host.leaves_nothing(sandbox).await;
    host.set_parking(0).await;
}

async fn two_that_waited_share_nothing_that_should_be_their_own() {
    let host = host_with(2).await;
    let coloured = |colour: &str| CreateSandbox { envs: [("COLOUR".into(), colour.into())].into(), ..small() };
    let (red, teal) = (coloured("red"), coloured("teal"));
    let (red, teal) = tokio::join!(host.sandbox_with(&red), host.sandbox_with(&teal));
    assert_eq!((start_of(&red).await, start_of(&teal).await), (StartKind::Parked, StartKind::Parked));

    let script = format!("{IDENTITY}; cat /sys/class/net/eth0/address; cat /etc/hostname");
    let (first, second) = tokio::join!(red.out(&script), teal.out(&script));

    let (first, second): (Vec<_>, Vec<_>) = (first.lines().collect(), second.lines().collect());
    assert_eq!((first.len(), second.len()), (9, 9), "{first:?} {second:?}");
    for (line, (mine, other)) in first.iter().zip(&second).enumerate().filter(|(line, _)| *line != 6) {
        assert_ne!(mine, other, "line {line} of {script}");
    }
    assert_eq!(first[3..6], [&red.id, &red.id, "red"]);
    assert_eq!(second[3..6], [&teal.id, &teal.id, "teal"]);
    drop((red, teal));
    host.set_parking(0).await;
}

async fn a_guest_that_waited_has_the_hosts_clock() {
    let host = host_with(1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let sandbox = host.sandbox().await;
    assert_eq!(start_of(&sandbox).await, StartKind::Parked);
    check_clock(&sandbox).await;
    drop(sandbox);
    host.set_parking(0).await;
}

async fn the_first_packet_meets_the_sandboxs_policy() {
    let internet = Internet::shared();
    let host = host_with(2).await;
    let with = |allow: &[&str]| CreateSandbox {
        network: Some(NetworkPolicy {
            allow_internet_access: false,
            allow_out: allow.iter().map(|entry| (*entry).to_owned()).collect(),
            ..NetworkPolicy::default()
        }),
        ..small()
    };
    let before = internet.arrivals().len();

    let closed = host.sandbox_with(&with(&[])).await;
    assert_eq!(start_of(&closed).await, StartKind::Parked);
    let denied = host.client.denied(&closed.id).await.unwrap();
    assert_eq!(denied.total, 0, "what it was kept from while it waited is nobody's: {denied:?}");
    let mut guest = Dialogue::start(&closed, REACHER).await;
    assert_eq!(guest.ask("resolve api.example.test").await, "unknown");
    assert_eq!(internet.arrivals().len(), before);

    let open = host.sandbox_with(&with(&["api.example.test"])).await;
    assert_eq!(start_of(&open).await, StartKind::Parked);
    let mut guest = Dialogue::start(&open, REACHER).await;
    assert!(guest.ask("tcp api.example.test 9999").await.starts_with("open "));
    assert_eq!(guest.ask("resolve www.example.test").await, "unknown");
    drop((closed, open));
    host.set_parking(0).await;
}

async fn a_later_tenant_finds_nothing_of_an_earlier_one() {
    const SECRET: &str = "of-the-first-tenant";
    let host = host_with(1).await;
    let request = CreateSandbox { envs: [("SECRET".into(), SECRET.into())].into(), ..small() };
    let first = host.sandbox_with(&request).await;
    assert_eq!(start_of(&first).await, StartKind::Parked);
    first.root_sh("for place in /root /home/user /dev/shm /tmp /etc; do echo $SECRET > $place/left; done; sync").await;
    first.delete().await;
    host.wait_until_parked(2).await;

    for _ in 0..2 {
        let later = host.sandbox().await;
        assert_eq!(start_of(&later).await, StartKind::Parked);
        let files = "grep -rlsF $needle /root /home /dev/shm /tmp /etc /run /var";
        let environments = "cat /proc/[0-9]*/environ | grep -caF $needle";
        let found = later.root_sh(&format!("needle={SECRET}; {files}; {environments}")).await;
        assert_eq!(support::text(&found.stdout), "0\n");
    }
    host.set_parking(0).await;
}

async fn one_that_waited_is_paused_forked_and_kept_as_any_other() {
    let host = host_with(1).await;
    let mut sandbox = host.sandbox().await;
    assert_eq!(start_of(&sandbox).await, StartKind::Parked);
    let mut counter = Dialogue::start(&sandbox, COUNTER).await;
    counter.grows("count", 0).await;
    drop(counter);
    let address = sandbox.out("cat /sys/class/net/eth0/address").await;

    host.kill_agent().await;
    assert_eq!(sandbox.out("cat /sys/class/net/eth0/address").await, address, "the next agent found it");
    sandbox.pause_and_resume().await;
    assert_eq!(start_of(&sandbox).await, StartKind::Restored);
    assert_eq!(sandbox.out("cat /sys/class/net/eth0/address").await, address);
    let forks = sandbox.fork(2).await.expect("it is forked");
    for fork in &forks {
        assert_eq!(fork.out("hostname").await.trim(), fork.id);
    }
    drop(forks);
    host.leaves_nothing(sandbox).await;
    host.set_parking(0).await;
}

async fn a_volume_is_mounted_in_one_that_waited() {
    let host = host_with(1).await;
    let volume: Volume = host.volume("parked").await;
    let first = volume.sandbox().await;
    assert_eq!(start_of(&first).await, StartKind::Parked);
    assert_eq!(first.out("echo kept > /data/file; sync; cat /data/file").await, "kept\n");
    first.delete().await;
    host.wait_until_parked(2).await;
    let second = volume.sandbox().await;
    assert_eq!(start_of(&second).await, StartKind::Parked);
    assert_eq!(second.out("cat /data/file").await, "kept\n");
    second.delete().await;
    drop(volume);
    host.set_parking(0).await;
}

async fn what_a_template_starts_stands_still_until_there_is_an_owner() {
    const START: &str = "while sleep 0.1; do cat /run/sandpiper/id; done >>/home/user/ids";
    let host = Host::shared();
    let template = host.template("parked").await;
    let sandbox = parked_of(&template, Some(START), "true").await;
    let seen = wait_for("its program goes on", || async {
        let seen = sandbox.out("sort -u ids").await;
        seen.contains(&sandbox.id).then_some(seen)
    });
    assert_ran_as_nobody_else(&seen.await, &sandbox);
    sandbox.delete().await;
    host.set_parking(0).await;
}

async fn what_a_tenants_template_does_at_a_login_is_not_done_while_it_waits() {
    const MARK: &str = "echo 'cat /run/sandpiper/id >>/home/user/ids' >/etc/profile.d/mark.sh";
    let host = Host::shared();
    let template = host.template("parked-login").await;
    let sandbox = parked_of(&template, None, MARK).await;
    let seen = sandbox.out("bash -l -c : && sort -u ids").await;
    assert!(seen.contains(&sandbox.id), "it is done at its owner's login: {seen}");
    assert_ran_as_nobody_else(&seen, &sandbox);
    sandbox.delete().await;
    host.set_parking(0).await;
}

/// A sandbox of a version of `template` that has waited for a while; `furnish` was run by root in what that was made of.
async fn parked_of(template: &Template, start: Option<&str>, furnish: &str) -> Sandbox {
    let host = Host::shared();
    let first = host.sandbox().await;
    first.root_sh(furnish).await;
    let checkpoint = first.checkpoint(false).await.expect("a checkpoint");
    let new = version_of(Source::Checkpoint(checkpoint.id.clone()));
    let ready_cmd = start.map(|_| "true".to_owned());
    template.build(&NewVersion { start_cmd: start.map(str::to_owned), ready_cmd, ..new }).await;
    host.set_parking(MOST).await;
    host.sandbox_with(&template.sandbox()).await.delete().await;
    host.wait_until_parked(1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sandbox = host.sandbox_with(&template.sandbox()).await;
    assert_eq!(start_of(&sandbox).await, StartKind::Parked);
    sandbox
}

/// Of those who ran something, only this sandbox and the machine that the warm snapshot is of may have.
fn assert_ran_as_nobody_else(ids: &str, sandbox: &Sandbox) {
    assert!(ids.lines().all(|id| id == "sandpiper" || id == sandbox.id), "it ran as somebody else: {ids}");
}

async fn where_the_one_that_waits_is_dead_another_is_started() {
    let host = host_with(1).await;
    let parked = host.helpers();
    assert_eq!(parked.len(), 1);
    kill(parked[0], Signal::SIGKILL).expect("the monitor is ours to kill");
    let sandbox = host.sandbox().await;
    assert_ne!(start_of(&sandbox).await, StartKind::Cold);
    assert_eq!(sandbox.out("echo lives").await, "lives\n");
    host.leaves_nothing(sandbox).await;
    host.set_parking(0).await;
}

async fn with_the_agent_those_that_wait_end() {
    let host = host_with(2).await;
    let before = host.helpers();
    assert_eq!(before.len(), 2);
    host.set_parking(0).await;
    assert_eq!(host.helpers(), []);
    assert_eq!(host.parked_machines().await, Some(0));
}
