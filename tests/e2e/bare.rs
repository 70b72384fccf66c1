//! Sandboxes that a guest becomes which has booted already, by entering their disk.

use std::time::Duration;

use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Dialogue, Host, KEEPER, Sandbox, eventually, small};

use crate::{templates, warm};

tests! {
    shared: [],
    alone: [
        a_bare_guest_becomes_what_one_is_that_has_booted_from_its_disk,
        a_bare_guest_runs_the_start_command_of_its_template_and_mounts_volumes,
        where_machines_are_parked_a_bare_guest_is_on_its_own_disk_all_the_same,
    ],
}

/// What programs meet, the same in every sandbox of a template: mounts, the size of the disk, owners and modes, users, limits, names.
const SURROUNDINGS: &str = "cut -d' ' -f2-3 /proc/mounts | sort; df -B1 --output=size,used /; \
                            stat -c '%n %a %u:%g' / /dev /etc /home/user /proc /root /run /run/lock /sys /tmp /var; \
                            id; sudo -n id; ulimit -n; sysctl -n vm.max_map_count net.ipv4.ip_unprivileged_port_start; \
                            cat /etc/resolv.conf; ls -A / /run /home/user; readlink /proc/self/cwd /dev/fd; ps -o pid=,args= 1; \
                            cat /proc/self/cgroup";

async fn a_bare_guest_becomes_what_one_is_that_has_booted_from_its_disk() {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    let booted = host.sandbox().await;
    let view = host.agent_view(&booted.id).await.unwrap();
    assert_eq!((view.start, view.is_bare), (StartKind::Cold, false));
    host.set_bare_starts_alone(true).await;
    host.wait_until_bare(&small()).await.delete().await;
    let (mut red, teal) = tokio::join!(bare("red"), bare("teal"));

    assert_eq!(red.out(SURROUNDINGS).await, booted.out(SURROUNDINGS).await);
    warm::share_nothing(("red", &red), ("teal", &teal)).await;
    warm::check_clock(&red).await;

    let keeper = Dialogue::start(&red, KEEPER).await.pid();
    red.out("echo kept > file").await;
    red.pause_and_resume().await;
    Dialogue::attach(&red, keeper).await.ask("digest").await;
    // From the disk, past the guest's own memory.
    red.root_sh("sync; echo 3 > /proc/sys/vm/drop_caches").await;
    assert_eq!(red.out("cat file").await, "kept\n");
    assert_eq!(teal.out("ls file 2>&1 | wc -l; grep -c . /etc/hostname").await, "1\n1\n");
    red.delete().await;
    booted.delete().await;
    host.leaves_nothing(teal).await;
    host.set_bare_starts_alone(false).await;
}

async fn a_bare_guest_runs_the_start_command_of_its_template_and_mounts_volumes() {
    let host = Host::shared();
    let template = templates::with_start_command(host, "bare").await;
    let volume = host.volume("bare").await;
    host.set_bare_starts_alone(true).await;
    host.wait_until_bare(&template.sandbox()).await.delete().await;

    let served = host.sandbox_with(&template.sandbox()).await;
    let mounted = volume.sandbox().await;

    for sandbox in [&served, &mounted] {
        assert!(host.agent_view(&sandbox.id).await.unwrap().is_bare);
    }
    eventually("the start command is up", || async { served.sh(templates::ASK).await.end.exit_code == 0 }).await;
    mounted.out("echo kept > /data/file; sync /data/file").await;
    mounted.delete().await;
    let other = volume.sandbox().await;
    assert_eq!(other.out("cat /data/file").await, "kept\n");
    other.delete().await;
    served.delete().await;
    volume.delete().await;
    host.set_bare_starts_alone(false).await;
}

async fn where_machines_are_parked_a_bare_guest_is_on_its_own_disk_all_the_same() {
    let host = Host::shared();
    host.set_bare_starts_alone(true).await;
    host.wait_until_bare(&small()).await.delete().await;
    host.set_parking(2).await;

    for _ in 0..3 {
        let sandbox = bare("red").await;
        assert_eq!(sandbox.out("id -un").await, "user\n");
        sandbox.delete().await;
        // Where one is to be parked, it is by then.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(host.parked_machines().await, Some(0));
    }

    host.set_parking(0).await;
    host.set_bare_starts_alone(false).await;
}

/// A sandbox of a bare guest with this secret.
async fn bare(colour: &str) -> Sandbox {
    let host = Host::shared();
    let request = CreateSandbox { envs: [("COLOUR".into(), colour.into())].into(), ..small() };
    let sandbox = host.sandbox_with(&request).await;
    assert!(host.agent_view(&sandbox.id).await.unwrap().is_bare);
    sandbox
}
