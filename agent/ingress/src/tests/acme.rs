//! Certificates from an issuer: from nothing to a handshake, after a crash, and when something refuses.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sandpiper_protocol::error_chain;

use super::issuer::Issuer;
use super::tls::handshake;
use super::*;
use crate::acme::Acme;
use crate::tls::Certificates;
use crate::{AcmeConfig, Tls};

const NAME: &str = "_acme-challenge.sandbox.localhost";

/// A folder with the zone, the issuer's root and the agent's state.
struct Site {
    folder: tempfile::TempDir,
    issuer: Arc<Issuer>,
}

impl Site {
    async fn new() -> Site {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let issuer = Issuer::start(folder.path().to_path_buf()).await;
        std::fs::write(folder.path().join("root.pem"), &issuer.root).expect("writable");
        Site { folder, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn config(&self) -> AcmeConfig {
        let hook = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/dns-hook.sh");
        let zone = self.folder.path().display().to_string();
        AcmeConfig {
            directory: format!("{}/directory", self.issuer.url),
            agree_to_terms: true,
            contact: vec!["mailto:ops@example.test".to_owned()],
            hook: vec!["/bin/sh".to_owned(), hook.to_owned(), zone],
            hook_timeout_seconds: 60,
            propagation_seconds: 0,
            root: Some(self.path("root.pem")),
        }
    }

    fn acme(&self) -> Acme {
        Acme::new(self.config(), self.folder.path(), "sandbox.localhost")
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").mode() & 0o777
}

#[tokio::test]
async fn a_certificate_is_ordered_and_served() {
    let site = Site::new().await;
    let house = House::with(IngressConfig { tls: Tls::Acme(site.config()), ..Default::default() }, mirror()).await;
    let root = site.path("root.pem");
    let trusted = async { while handshake(&house, &root, PUBLIC, &[b"h2"]).await.is_err() {} };
    soon(trusted).await;

    handshake(&house, &root, "sandbox.localhost", &[]).await.expect("the host itself");
    for name in ["account.json", "sandbox.localhost.pem"] {
        assert_eq!(mode(&house.folder.path().join("acme").join(name)), 0o600, "{name}");
    }
    assert_eq!(site.read(NAME), "", "no record is left in the DNS");
}

#[tokio::test]
async fn an_order_is_carried_on_after_a_crash() {
    let site = Site::new().await;
    site.issuer.ledger().slow = true;
    // Dropped where the issuer has made the certificate and does not hand it out yet.
    let first = site.acme();
    let issued = async {
        while !site.issuer.ledger().orders.iter().any(|order| order.certificate.is_some()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = first.obtain() => panic!("not ready: {result:?}"),
        () = soon(issued) => {}
    }
    drop(first);
    site.issuer.ledger().slow = false;

    soon(site.acme().obtain()).await.expect("a certificate");

    assert_eq!(site.issuer.ledger().orders.len(), 1, "the same order");
    assert!(site.read("acme/sandbox.localhost.pem").contains("PRIVATE KEY"));
    assert!(!site.path("acme/sandbox.localhost.order.json").exists());
    assert_eq!(site.read(NAME), "", "no record is left in the DNS");
}

#[tokio::test]
async fn a_refused_order_is_given_up_and_the_next_one_is_new() {
    let site = Site::new().await;
    let mut config = site.config();
    // Says that all went well and publishes nothing.
    config.hook = vec!["/bin/true".to_owned()];
    let unpublished = Acme::new(config, site.folder.path(), "sandbox.localhost");
    let error = soon(unpublished.obtain()).await.expect_err("no record to be seen");
    assert!(error_chain::chain(&error).contains("see that the hook publishes"), "{}", error_chain::chain(&error));
    assert!(!site.path("acme/sandbox.localhost.order.json").exists());

    soon(site.acme().obtain()).await.expect("a certificate");
    assert_eq!(site.issuer.ledger().orders.len(), 2);
}

#[tokio::test]
async fn a_hook_that_fails_is_cleaned_up_after_and_called_again_for_the_same_order() {
    let site = Site::new().await;
    let mut config = site.config();
    let script = format!("echo \"$*\" >> {}/calls; test $1 = cleanup", site.folder.path().display());
    config.hook = ["/bin/sh", "-c", &script, "hook"].map(str::to_owned).to_vec();
    let failing = Acme::new(config, site.folder.path(), "sandbox.localhost");
    let error = soon(failing.obtain()).await.expect_err("the hook fails");
    assert!(
        error_chain::chain(&error).contains("present _acme-challenge.sandbox.localhost failed"),
        "{}",
        error_chain::chain(&error)
    );
    let calls = site.read("calls");
    let actions: Vec<&str> = calls.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(actions, ["present", "cleanup"]);

    soon(site.acme().obtain()).await.expect("a certificate");
    assert_eq!(site.issuer.ledger().orders.len(), 1);
}

#[tokio::test]
async fn an_old_certificate_is_renewed() {
    let site = Site::new().await;
    site.issuer.ledger().days_used = 80;
    soon(site.acme().obtain()).await.expect("a certificate");
    let old = site.read("acme/sandbox.localhost.pem");
    site.issuer.ledger().days_used = 0;
    let served = Certificates::open(&Tls::Acme(site.config()), site.folder.path(), "sandbox.localhost");
    let upkeep = tokio::spawn(site.acme().run(served.expect("usable").expect("TLS is on")));

    let renewed = async {
        while site.read("acme/sandbox.localhost.pem") == old {
            tokio::task::yield_now().await;
        }
    };
    soon(renewed).await;
    upkeep.abort();

    assert_eq!(site.issuer.ledger().orders.len(), 2);
}
