//! Where volumes are in a sandbox, and from when on.

use std::collections::BTreeMap;

use sandpiper::client::CreateSandbox;
use serde_json::json;
use support::{Host, Volume, small};

tests! {
    shared: [
        four_volumes_are_there_before_anything_runs_one_of_them_in_another,
        a_volume_hides_what_its_template_has_at_its_place,
        a_volume_and_the_folders_on_the_way_to_it_are_the_users,
        a_symbolic_link_on_the_way_is_refused_and_the_volume_is_free,
        mounts_that_cannot_be_are_refused,
    ],
    alone: [],
}

async fn four_volumes_are_there_before_anything_runs_one_of_them_in_another() {
    let host = Host::shared();
    let volumes = [volume("four-1").await, volume("four-2").await, volume("four-3").await, volume("four-4").await];
    for volume in &volumes {
        volume.write("/name", format!("{}\n", volume.name)).await;
    }
    let paths = ["/srv/outer", "/srv/outer/in/ner", "/srv/other", "/mnt/far/away"];
    let mounts: BTreeMap<_, _> =
        paths.iter().zip(&volumes).map(|(path, volume)| ((*path).to_owned(), volume.name.clone())).collect();

    let mut sandbox = host.sandbox_with(&CreateSandbox { volume_mounts: mounts.clone(), ..small() }).await;

    let seen = "cat /srv/outer/name /srv/outer/in/ner/name /srv/other/name /mnt/far/away/name";
    assert_eq!(sandbox.out(seen).await, "four-1\nfour-2\nfour-3\nfour-4\n");
    let shown = host.client.show(&sandbox.id).await.unwrap().raw["volume_mounts"].clone();
    assert_eq!(shown, json!(mounts));
    for volume in &volumes {
        assert_eq!(volume.attached_to().await.as_deref(), Some(sandbox.id.as_str()), "{}", volume.name);
    }
    sandbox.out("echo inner > /srv/outer/in/ner/file").await;
    sandbox.pause_and_resume().await;
    assert_eq!(sandbox.out(seen).await, "four-1\nfour-2\nfour-3\nfour-4\n");
    sandbox.delete().await;
    // What was written in the inner one is there, and only there.
    assert_eq!(volumes[1].files().stat("/file").await.expect("the file is there").size, 6);
    assert!(volumes[0].files().list("/in/ner").await.expect("the folder is there").is_empty());
}

async fn a_volume_hides_what_its_template_has_at_its_place() {
    const PLACE: &str = "/var/lib/dpkg";
    let host = Host::shared();
    let volume = volume("hiding").await;

    let sandbox = host.sandbox_with(&volume.at(PLACE)).await;

    assert_eq!(sandbox.out(&format!("ls -A {PLACE}; echo own > {PLACE}/status; cat {PLACE}/status")).await, "own\n");
    sandbox.delete().await;
    let plain = host.sandbox().await;
    assert_ne!(plain.out(&format!("head -n 1 {PLACE}/status")).await, "own\n");
}

async fn a_volume_and_the_folders_on_the_way_to_it_are_the_users() {
    let host = Host::shared();
    let volume = volume("owned").await;

    let first = host.sandbox_with(&volume.at("/made/on/the/way")).await;
    assert_eq!(
        first.out("stat -c '%U:%G %a' /made /made/on/the /made/on/the/way; ls -A /made/on/the/way").await,
        "user:user 755\nuser:user 755\nuser:user 755\n"
    );
    // What is done to a volume's root stays.
    first.root_sh("chown root /made/on/the/way && chmod 750 /made/on/the/way").await;
    first.delete().await;

    let second = host.sandbox_with(&volume.at("/elsewhere")).await;
    assert_eq!(second.out("stat -c '%U:%G %a' /elsewhere").await, "root:user 750\n");
}

async fn a_symbolic_link_on_the_way_is_refused_and_the_volume_is_free() {
    let host = Host::shared();
    let volume = volume("linked").await;

    // `/bin` is a link to `/usr/bin`.
    let refused = host.try_sandbox(&volume.at("/bin/models")).await;

    let error = refused.map(|sandbox| sandbox.id.clone()).expect_err("it is refused");
    assert_eq!((error.status(), error.code()), (Some(422), Some("mount_refused")), "{error}");
    assert!(error.to_string().contains("/bin/models: a symbolic link is in it"), "{error}");
    assert_eq!(volume.attached_to().await, None);
    let sandbox = host.sandbox_with(&volume.at("/usr/bin/models")).await;
    sandbox.out("echo usable > /bin/models/file").await;
}

async fn mounts_that_cannot_be_are_refused() {
    let host = Host::shared();
    let volume = volume("plain").await;
    let refused = async |mounts: &[(&str, &str)]| {
        let mounts = mounts.iter().map(|(path, name)| ((*path).to_owned(), (*name).to_owned())).collect();
        let refused = host.try_sandbox(&CreateSandbox { volume_mounts: mounts, ..small() }).await;
        let error = refused.map(|sandbox| sandbox.id.clone()).expect_err("it is refused");
        (error.status().unwrap_or_default(), error.code().unwrap_or_default().to_owned())
    };

    for path in ["relative", "/", "/usr", "/proc/1", "/a/../b", "/a/"] {
        assert_eq!(refused(&[(path, "plain")]).await, (400, "invalid_request".to_owned()), "{path}");
    }
    assert_eq!(refused(&[("/a", "plain"), ("/b", "plain")]).await.0, 400, "one volume at two paths");
    let five = [("/a", "plain"), ("/b", "2"), ("/c", "3"), ("/d", "4"), ("/e", "5")];
    assert_eq!(refused(&five).await.0, 400, "five volumes");
    assert_eq!(refused(&[("/data", "no-such-volume")]).await, (422, "unknown_volume".to_owned()));
    assert_eq!(volume.attached_to().await, None);
}

async fn volume(name: &str) -> Volume<'static> {
    Host::shared().volume(name).await
}
