//! The boxes: load, ingress and origin as runtimes of one thread each, and nginx beside them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore};
use sandpiper_ingress::session::Sessions;
use sandpiper_ingress::{Directory, Ingress, IngressConfig, Target, Tls, WakeError};
use sandpiper_protocol::agent::{ExposedPort, PortProtocol, Previews, SandboxState};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::nginx::Nginx;
use super::origin::{self, Opening};
use crate::usage;

pub(super) const HOST: &str = "p8000-bench.sandbox.localhost";
/// Names of threads; the kernel keeps 15 bytes.
const INGRESS: &str = "bench-ingress";
const ORIGIN: &str = "bench-origin";
const LOAD: &str = "bench-load";

/// What is compared: where it listens, and which of a process's threads are its own.
pub(super) struct Subject {
    pub(super) address: SocketAddr,
    process: u32,
    thread: &'static str,
}

impl Subject {
    /// What its threads have had of the processors.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        usage::processor_time(self.process, |thread| thread == self.thread)
    }
}

/// All that a measurement needs; ends with this.
pub(super) struct Stage {
    pub(super) ingress: Subject,
    pub(super) nginx: Subject,
    /// How clients speak.
    pub(super) tls: Option<Arc<ClientConfig>>,
    load: Threads,
    _origin: Threads,
    _ingress: Threads,
    _nginx: Nginx,
    _folder: tempfile::TempDir,
}

impl Stage {
    pub(super) async fn set(tls: bool) -> anyhow::Result<Stage> {
        let folder = tempfile::Builder::new().prefix("sandpiper-preview-").tempdir()?;
        let (plain, monitor) = (folder.path().join("origin"), folder.path().join("vsock"));
        let client = tls.then(|| certify(folder.path())).transpose()?;
        let (load, origin, ingress) = (Threads::new(LOAD)?, Threads::new(ORIGIN)?, Threads::new(INGRESS)?);
        origin.run(origin::serve(plain.clone(), Opening::Http)).await?;
        origin.run(origin::serve(monitor.clone(), Opening::Monitor)).await?;
        let address = ingress.run(serve(folder.path().to_path_buf(), monitor, tls)).await?;
        let nginx = Nginx::start(folder.path(), &plain, tls).await?;
        Ok(Stage {
            ingress: Subject { address, process: std::process::id(), thread: INGRESS },
            nginx: Subject { address: nginx.address, process: nginx.id(), thread: "nginx" },
            tls: client,
            load,
            _origin: origin,
            _ingress: ingress,
            _nginx: nginx,
            _folder: folder,
        })
    }

    /// Does `work` on the thread of the load.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.load.run(work).await
    }
}

/// A runtime with one thread, apart from the benchmark's own.
struct Threads(Option<Runtime>);

impl Threads {
    fn new(name: &str) -> anyhow::Result<Threads> {
        Ok(Threads(Some(Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?)))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let runtime = self.0.as_ref().context("the threads have ended")?;
        runtime.spawn(work).await?
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // To wait for it is not allowed where another runtime runs.
            runtime.shutdown_background();
        }
    }
}

/// Serves an ingress, with one sandbox behind it, until the runtime ends where this is called. Returns where it listens.
async fn serve(folder: PathBuf, vsock: PathBuf, tls: bool) -> anyhow::Result<SocketAddr> {
    let tls = match tls {
        true => Tls::Files { certificate: certificate(&folder), key: key(&folder) },
        false => Tls::Off,
    };
    let config = IngressConfig { listen: (Ipv4Addr::LOCALHOST, 0).into(), tls, ..IngressConfig::default() };
    let sessions = Sessions::open(&folder.join("session.key"), Duration::from_secs(600))?;
    let ingress = Ingress::bind(&config, &folder, Arc::new(OneSandbox { vsock }), Arc::new(sessions)).await?;
    let address = ingress.address();
    tokio::spawn(ingress.serve(CancellationToken::new()));
    Ok(address)
}

/// Writes a certificate and its key to `folder`. Returns how clients speak that trust it.
fn certify(folder: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["*.sandbox.localhost".to_owned()])?;
    std::fs::write(certificate(folder), cert.pem())?;
    std::fs::write(key(folder), signing_key.serialize_pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

pub(super) fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

pub(super) fn key(folder: &Path) -> PathBuf {
    folder.join("key.pem")
}

const SANDBOX: &str = "sbx06aaaaaaaaaaaaaaaaaaaaa";

/// A directory of one sandbox, whose port 8000 is open to everyone.
struct OneSandbox {
    vsock: PathBuf,
}

impl Directory for OneSandbox {
    async fn find(&self, _route_token: &str) -> Option<Target> {
        Some(Target {
            sandbox_id: SANDBOX.to_owned(),
            team_disabled: false,
            state: SandboxState::Ready,
            wakes: false,
            vsock: self.vsock.clone(),
            exposed_ports: vec![ExposedPort { port: 8000, protocol: PortProtocol::Http, public: true }],
            allow_public_traffic: true,
            previews: Previews::default(),
        })
    }

    fn ids(&self) -> Vec<String> {
        vec![SANDBOX.to_owned()]
    }

    async fn wake(&self, _sandbox_id: &str) -> Result<(), WakeError> {
        Ok(())
    }
}
