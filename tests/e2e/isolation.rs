//! Sandboxes of one template, apart from each other.

use support::Host;

tests! {
    shared: [
        two_sandboxes_of_one_template_do_not_see_each_others_writes,
        each_sandbox_has_its_own_randomness_and_the_hosts_clock,
    ],
    alone: [],
}

async fn two_sandboxes_of_one_template_do_not_see_each_others_writes() {
    let host = Host::shared();
    let (first, second) = tokio::join!(host.sandbox(), host.sandbox());

    first.sh("echo first > /home/user/mine; sync").await;
    second.sh("echo second > /home/user/mine; sync").await;
    first.root_sh("echo 3 > /proc/sys/vm/drop_caches").await;
    second.root_sh("echo 3 > /proc/sys/vm/drop_caches").await;

    assert_eq!(first.sh("cat /home/user/mine").await.stdout, b"first\n");
    assert_eq!(second.sh("cat /home/user/mine").await.stdout, b"second\n");
    let third = host.sandbox().await;
    assert_ne!(third.sh("cat /home/user/mine").await.end.exit_code, 0);
}

async fn each_sandbox_has_its_own_randomness_and_the_hosts_clock() {
    let host = Host::shared();
    let (first, second) = tokio::join!(host.sandbox(), host.sandbox());

    let random = "head -c 32 /dev/urandom | sha256sum";
    assert_ne!(first.sh(random).await.stdout, second.sh(random).await.stdout);

    let before = unix_seconds();
    let seen: f64 = String::from_utf8(first.sh("date +%s.%N").await.stdout).unwrap().trim().parse().unwrap();
    let after = unix_seconds();
    assert!(before - 1.0 <= seen && seen <= after + 1.0, "{before} <= {seen} <= {after}");
}

fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64()
}
