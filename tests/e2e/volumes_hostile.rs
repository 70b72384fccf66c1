//! Volumes whose owner means harm: what is on them harms the guests that mount them, and nobody else.
//!
//! Root of a sandbox may write anything to its volume's disk, below the file system's feet. That is how these come about.

use reqwest::{Method, StatusCode};
use sandpiper::client::{ClientError, CreateSandbox};
use serde_json::{Value, json};
use support::{Bystander, Host, Sandbox, small, within};

tests! {
    shared: [
        nothing_in_a_volume_leads_out_of_it_or_holds_its_readers_up,
        a_volume_without_a_file_system_is_called_damaged,
        a_volume_whose_structures_are_garbled_harms_its_own_guests_at_most,
    ],
    alone: [],
}

async fn nothing_in_a_volume_leads_out_of_it_or_holds_its_readers_up() {
    let volume = Volume::new("hostile-files").await;
    let bystander = Bystander::new().await;
    let script = "set -e; cd /data
        ln -s /etc outside; ln -s ../../../../etc/passwd up; ln -s /proc/self/root magic; ln -s loop loop
        mkfifo fifo; mknod disk b 254 0; mknod zero c 1 5
        truncate -s 1T sparse; echo inside > file; ln -s /file link
        cp /bin/bash setuid; chmod 4755 setuid
        mkdir many; cd many; seq 20000 | xargs touch; cd ..
        mkdir deep; cd deep; for i in $(seq 500); do mkdir d; cd d; done; cd /data; sync";
    let writer = volume.sandbox().await.expect("the volume is empty");
    let wrote = writer.root_sh(script).await;
    assert_eq!(wrote.end.exit_code, 0, "{}", support::text(&wrote.stderr));
    // Neither devices nor other users' rights come from a volume.
    assert_ne!(writer.root_sh("head -c 1 /data/zero").await.end.exit_code, 0);
    assert_eq!(writer.out("/data/setuid -p -c 'id -u'").await, "1000\n");
    writer.delete().await;

    for path in ["/outside/passwd", "/up", "/magic/etc/passwd"] {
        assert_eq!(volume.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/loop", "/fifo", "/disk", "/zero", "/many"] {
        assert_eq!(volume.get(path).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
    assert_eq!(volume.get("/link").await, (StatusCode::OK, b"inside\n".to_vec()), "its root is the root");
    let end = volume.read("/sparse", Some("bytes=1099511627770-")).await;
    assert_eq!(end, (StatusCode::PARTIAL_CONTENT, vec![0; 6]));
    let page = volume.call(Method::GET, "directories?path=/many&limit=10", None).await.expect("a page");
    assert_eq!(page["entries"].as_array().map(Vec::len), Some(10));
    for path in ["/deep", "/many", "/outside"] {
        let removed = within("the removal", volume.call(Method::DELETE, &format!("path?path={path}"), None)).await;
        removed.unwrap_or_else(|error| panic!("{path} is removed: {error}"));
    }

    bystander.is_unharmed("a volume of hostile files").await;
    let reader = volume.sandbox().await.expect("the volume is whole");
    assert_eq!(
        reader.out("cat /data/file; ls /data/many 2>&1 | wc -l; test -s /etc/passwd && echo well").await,
        "inside\n1\nwell\n"
    );
    reader.delete().await;
    volume.delete().await;
}

async fn a_volume_without_a_file_system_is_called_damaged() {
    let volume = Volume::new("hostile-noise").await;
    let bystander = Bystander::new().await;
    volume.spoil("head -c 8388608 /dev/urandom").await;

    let started = within("the create", volume.sandbox()).await;
    let listed = within("the list", volume.call(Method::GET, "directories?path=/", None)).await;

    assert!(started.is_err(), "noise was mounted");
    let refused = listed.expect_err("noise was listed");
    assert_eq!((refused.status(), refused.code()), (Some(422), Some("volume_damaged")), "{refused}");
    bystander.is_unharmed("a volume of noise").await;
    volume.delete().await;
}

async fn a_volume_whose_structures_are_garbled_harms_its_own_guests_at_most() {
    let bystander = Bystander::new().await;
    for seed in 1..=4 {
        let volume = Volume::new(&format!("hostile-bits-{seed}")).await;
        // A twentieth of the blocks of the first group: descriptors, bitmaps, inodes and directories.
        let garbler = format!(
            "python3 -c \"import os, random; r = random.Random({seed}); d = os.open('/dev/vdb', os.O_RDWR)
for block in range(1, 4096):
    if r.random() < 0.05:
        os.pwrite(d, r.randbytes(64), block * 4096 + r.randrange(4096 - 64))
os.fsync(d)\""
        );
        volume.garble(&garbler).await;

        // Mounted or refused, read or damaged: it comes to an end, and the host goes on.
        let started = within("the create", volume.sandbox()).await;
        if let Ok(started) = started {
            let _ = started.root_sh("timeout 20 find /data; timeout 20 touch /data/new").await;
            within("the delete", started.delete()).await;
        }
        let listed = within("the list", volume.call(Method::GET, "directories?path=/&depth=32", None)).await;

        if let Err(error) = listed {
            let status = error.status();
            assert!(matches!(status, Some(404 | 422 | 502)), "seed {seed}: {error}");
        }
        bystander.is_unharmed(&format!("a volume garbled with seed {seed}")).await;
        within("the delete", volume.delete()).await;
    }
}

/// A volume of a test.
struct Volume {
    id: String,
    name: String,
}

impl Volume {
    async fn new(name: &str) -> Self {
        let made = Host::shared().client.call(Method::POST, "/volumes", Some(json!({"name": name}))).await;
        let made = made.expect("the volume is made");
        Self { id: made["id"].as_str().expect("an id").to_owned(), name: name.to_owned() }
    }

    /// A sandbox that has it at `/data`.
    async fn sandbox(&self) -> Result<Sandbox, ClientError> {
        let volume_mounts = [("/data".to_owned(), self.name.clone())].into();
        Host::shared().try_sandbox(&CreateSandbox { volume_mounts, ..small() }).await
    }

    /// Writes what a command prints over the beginning of its disk.
    async fn spoil(&self, command: &str) {
        self.garble(&format!("{command} | dd of=/dev/vdb bs=1M iflag=fullblock conv=fsync")).await;
    }

    /// Runs a command of a sandbox's root that does something to its disk.
    async fn garble(&self, command: &str) {
        let sandbox = self.sandbox().await.expect("the volume is whole");
        let garbled = sandbox.root_sh(command).await;
        assert_eq!(garbled.end.exit_code, 0, "{}", support::text(&garbled.stderr));
        within("the delete", sandbox.delete()).await;
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, ClientError> {
        Host::shared().client.call(method, &format!("/volumes/{}/{path}", self.id), body).await
    }

    /// A file, or what is said instead.
    async fn get(&self, path: &str) -> (StatusCode, Vec<u8>) {
        self.read(path, None).await
    }

    /// The file, or the range of it.
    async fn read(&self, path: &str, range: Option<&str>) -> (StatusCode, Vec<u8>) {
        let host = Host::shared();
        let url = format!("{}/v1/volumes/{}/files?path={path}", host.api_url, self.id);
        let mut request = host.client.http().get(url).bearer_auth(host.api_key());
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let response = within("the file", request.send()).await.expect("a response");
        let status = response.status();
        (status, within("the body", response.bytes()).await.expect("a body").to_vec())
    }

    async fn delete(self) {
        let deleted = Host::shared().client.call(Method::DELETE, &format!("/volumes/{}", self.id), None).await;
        deleted.expect("the volume is deleted");
    }
}
