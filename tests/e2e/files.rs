//! Files up and down.

use support::{Host, Sandbox};

tests! {
    shared: [
        twenty_mebibytes_go_up_and_down_unchanged,
        files_that_are_missing_or_not_the_users_are_refused,
        a_full_disk_is_an_error_of_the_guest_and_not_its_end,
    ],
    alone: [],
}

async fn twenty_mebibytes_go_up_and_down_unchanged() {
    let sandbox = Host::shared().sandbox().await;
    let content: Vec<u8> = (0..20_u32 << 18).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();

    let written = sandbox.data_plane.write_file("/home/user/deep/er/big.bin", content.clone(), None).await.unwrap();
    let read = sandbox.data_plane.read_file("deep/er/big.bin", None).await.unwrap();

    assert_eq!(written.path, "/home/user/deep/er/big.bin");
    assert_eq!(read.len(), content.len());
    assert!(read == content, "the bytes differ");
    let owner = sandbox.sh("stat -c %U:%G deep deep/er deep/er/big.bin").await;
    assert_eq!(String::from_utf8_lossy(&owner.stdout), "user:user\nuser:user\nuser:user\n");
}

async fn files_that_are_missing_or_not_the_users_are_refused() {
    let sandbox = Host::shared().sandbox().await;

    assert_eq!(read_status(&sandbox, "/no/such/file", None).await, 404);
    assert_eq!(read_status(&sandbox, "/etc", None).await, 400);
    assert_eq!(read_status(&sandbox, "/etc/hostname", Some("nosuchuser")).await, 401);
    assert_ne!(read_status(&sandbox, "/etc/shadow", None).await, 200);
    assert!(sandbox.data_plane.read_file("/etc/shadow", Some("root")).await.is_ok());
}

async fn a_full_disk_is_an_error_of_the_guest_and_not_its_end() {
    let sandbox = Host::shared().sandbox().await;

    let filled = sandbox.root_sh("fallocate -l $(($(df --output=avail -B1 / | tail -1) + 4096)) /fill || fallocate -l $(($(df --output=avail -B1 / | tail -1) - 65536)) /fill; dd if=/dev/zero of=/more bs=1M count=64").await;

    assert_ne!(filled.end.exit_code, 0, "{filled:?}");
    assert!(String::from_utf8_lossy(&filled.stderr).contains("No space left on device"), "{filled:?}");
    let after = sandbox.root_sh("rm -f /fill /more && echo alive > /alive && cat /alive").await;
    assert_eq!(String::from_utf8_lossy(&after.stdout), "alive\n");
}

async fn read_status(sandbox: &Sandbox, path: &str, user: Option<&str>) -> u16 {
    match sandbox.data_plane.read_file(path, user).await {
        Ok(_) => 200,
        Err(error) => error.status().expect("an answer"),
    }
}
