//! Forks: sandboxes that go on from where another one is.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use support::{COUNTER, Dialogue, Host, KEEPER, Sandbox};

tests! {
    shared: [
        ten_forks_of_a_running_sandbox_go_on_as_themselves_and_so_does_their_source,
        a_stopped_sandbox_is_forked_and_stays_stopped,
    ],
    alone: [],
}

/// Forks that are looked at side by side.
const AT_A_TIME: usize = 3;

async fn ten_forks_of_a_running_sandbox_go_on_as_themselves_and_so_does_their_source() {
    let host = Host::shared();
    let source = host.sandbox().await;
    source.out("echo shared > file").await;
    let mut counter = Dialogue::start(&source, COUNTER).await;
    let before = counter.grows("count", 5).await;

    let forks = source.fork(10).await.expect("the forks are made");

    let after = counter.ask_number("count").await;
    assert_eq!(forks.len(), 10);
    // Each goes when it was looked at: what is left has the host's processors for itself.
    let look = |fork: Sandbox| async {
        let what = fork.id.clone();
        assert_eq!(host.client.show(&what).await.unwrap().state, "ready");
        let seen = fork.out("hostname; cat /run/sandpiper/id file; echo $HOSTNAME; echo mine > file").await;
        assert_eq!(seen, format!("{what}\n{what}\nshared\n{what}\n"));
        let mut copy = Dialogue::attach(&fork, counter.pid()).await;
        let count = copy.ask_number("count").await;
        assert!(count >= before, "{before} was counted before the fork, {count} in {what}");
        copy.grows("count", count).await;
        assert_eq!(copy.ask("check").await, "whole", "{what}");
        let random = fork.out("head -c 16 /dev/urandom | sha256sum").await;
        host.leaves_nothing(fork).await;
        random
    };
    let random: Vec<String> = stream::iter(forks).map(look).buffer_unordered(AT_A_TIME).collect().await;
    let distinct: HashSet<&String> = random.iter().collect();
    assert_eq!(distinct.len(), 10, "{random:?}");
    assert_eq!(source.out("cat file").await, "shared\n");
    counter.grows("count", after).await;
    assert_eq!(counter.ask("check").await, "whole", "the source went on");
    host.leaves_nothing(source).await;
}

async fn a_stopped_sandbox_is_forked_and_stays_stopped() {
    let host = Host::shared();
    let mut source = host.sandbox().await;
    let mut keeper = Dialogue::start(&source, KEEPER).await;
    let digest = keeper.ask("digest").await;
    source.pause().await.expect("the sandbox is paused");

    let forks = source.fork(2).await.expect("the forks are made");

    assert_eq!(host.client.show(&source.id).await.unwrap().state, "stopped");
    for fork in &forks {
        assert_eq!(fork.out("hostname").await, format!("{}\n", fork.id));
        assert_eq!(Dialogue::attach(fork, keeper.pid()).await.ask("digest").await, digest, "{}", fork.id);
    }
    for fork in forks {
        host.leaves_nothing(fork).await;
    }
    source.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(Dialogue::attach(&source, keeper.pid()).await.ask("digest").await, digest);
}
