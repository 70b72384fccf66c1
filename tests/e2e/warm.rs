//! Sandboxes that begin as a copy of a machine that was booted before.

use std::time::{SystemTime, UNIX_EPOCH};

use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Dialogue, Host, KEEPER, Sandbox, small};

tests! {
    shared: [],
    alone: [
        the_second_sandbox_of_a_shape_is_restored_and_serves,
        two_sandboxes_from_one_snapshot_share_nothing_that_should_be_their_own,
        a_restored_guest_has_the_hosts_clock,
        a_host_that_rests_makes_the_snapshots_of_the_plans_by_itself,
    ],
}

/// How far a guest's clock may be from the host's.
const CLOCK_NS: u128 = 50_000_000;

/// What tells two machines apart, a line each: random numbers three ways, names, start, secret.
pub(crate) const IDENTITY: &str = "python3 -c 'import os; print(os.urandom(32).hex())'; cat /proc/sys/kernel/random/uuid; \
                        python3 -c 'import uuid; print(uuid.uuid4())'; hostname; cat /run/sandpiper/id; echo $COLOUR; \
                        cat /run/sandpiper/generation";

async fn the_second_sandbox_of_a_shape_is_restored_and_serves() {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;

    let sandbox = host.sandbox().await;

    assert_eq!(start_of(&sandbox).await, StartKind::Warm);
    assert_eq!(sandbox.out("echo served > file; cat file; id -un").await, "served\nuser\n");
    sandbox.data_plane.write_file("other", b"up and down".to_vec(), None).await.unwrap();
    assert_eq!(sandbox.data_plane.read_file("other", None).await.unwrap(), b"up and down");
    host.leaves_nothing(sandbox).await;
}

async fn two_sandboxes_from_one_snapshot_share_nothing_that_should_be_their_own() {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    let coloured = |colour: &str| CreateSandbox { envs: [("COLOUR".into(), colour.into())].into(), ..small() };
    let (red, teal) = (coloured("red"), coloured("teal"));
    let (red, teal) = tokio::join!(host.sandbox_with(&red), host.sandbox_with(&teal));
    assert_eq!((start_of(&red).await, start_of(&teal).await), (StartKind::Warm, StartKind::Warm));

    share_nothing(("red", &red), ("teal", &teal)).await;
}

/// Compares what tells two sandboxes apart that were made of one snapshot, each with a colour of its own.
pub(crate) async fn share_nothing((red_colour, red): (&str, &Sandbox), (teal_colour, teal): (&str, &Sandbox)) {
    let (first, second) = tokio::join!(red.out(IDENTITY), teal.out(IDENTITY));

    let (first, second): (Vec<_>, Vec<_>) = (first.lines().collect(), second.lines().collect());
    assert_eq!((first.len(), second.len()), (7, 7), "{first:?} {second:?}");
    for (line, (mine, other)) in first.iter().zip(&second).take(6).enumerate() {
        assert_ne!(mine, other, "line {line} of {IDENTITY}");
    }
    assert_eq!(first[3..6], [red.id.as_str(), &red.id, red_colour]);
    assert_eq!(second[3..6], [teal.id.as_str(), &teal.id, teal_colour]);
    assert!(first[6].parse::<u64>().is_ok_and(|generation| generation >= 1), "generation {:?}", first[6]);
}

async fn a_restored_guest_has_the_hosts_clock() {
    let host = Host::shared();
    check_clock(&host.wait_until_warm(&small()).await).await;
}

/// Compares a guest's clock with the host's.
pub(crate) async fn check_clock(sandbox: &Sandbox) {
    let mut clock = Dialogue::start(sandbox, KEEPER).await;

    let mut readings = Vec::new();
    for _ in 0..5 {
        let before = unix_ns();
        let guest = u128::from(clock.ask_number("time").await);
        let after = unix_ns();
        readings.push((after - before, before, guest, after));
    }

    // The reading that took least says most.
    let (width, before, guest, after) = readings.into_iter().min().expect("five readings");
    let early = before.saturating_sub(guest);
    let late = guest.saturating_sub(after);
    assert!(
        early <= CLOCK_NS && late <= CLOCK_NS,
        "the guest's clock is {early} ns early or {late} ns late, read within {width} ns"
    );
}

async fn a_host_that_rests_makes_the_snapshots_of_the_plans_by_itself() {
    let host = Host::shared();
    // Of the base template on the root disks of two plans, and a bare one.
    host.wait_until_made_ahead(3).await;

    let sandbox = host.sandbox_with(&CreateSandbox::default()).await;

    assert_eq!(start_of(&sandbox).await, StartKind::Warm);
    assert_eq!(sandbox.out("id -un").await, "user\n");
    host.leaves_nothing(sandbox).await;
    host.make_nothing_ahead().await;
}

async fn start_of(sandbox: &Sandbox) -> StartKind {
    Host::shared().agent_view(&sandbox.id).await.expect("the agent answers").start
}

fn unix_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}
