//! nginx, to compare with: one worker, keeping connections on both sides, writing no log.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use support::eventually;
use tokio::net::TcpStream;

use super::stage::{certificate, key};

/// A running nginx, in the folder that it was given; it ends with this.
pub(super) struct Nginx {
    process: Child,
    pub(super) address: SocketAddr,
}

impl Nginx {
    /// In front of the server at the Unix socket `origin`; with the certificate and key in `folder` if `tls`.
    pub(super) async fn start(folder: &Path, origin: &Path, tls: bool) -> anyhow::Result<Nginx> {
        // nginx cannot say which port it got, so one is chosen that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let configuration = folder.join("nginx.conf");
        std::fs::write(&configuration, text(folder, origin, address, tls))?;
        let process = Command::new("nginx")
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&configuration)
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .context("Cannot run nginx, which this is compared with: install Debian's nginx-light")?;
        let nginx = Nginx { process, address };
        eventually("nginx listens", || async { TcpStream::connect(address).await.is_ok() }).await;
        Ok(nginx)
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What it tells the server of the client is what the proxy tells it.
fn text(folder: &Path, origin: &Path, address: SocketAddr, tls: bool) -> String {
    let (certificate, key) = (certificate(folder), key(folder));
    let (ssl, certificate) = match tls {
        true => {
            let files = (certificate.display(), key.display());
            (" ssl", format!("ssl_certificate {}; ssl_certificate_key {};", files.0, files.1))
        }
        false => ("", String::new()),
    };
    let (folder, origin) = (folder.display(), origin.display());
    format!(
        r#"
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    proxy_max_temp_file_size 0;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream origin {{
        server unix:{origin};
        keepalive 128;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address}{ssl};
        {certificate}
        location / {{
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Port $server_port;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Forwarded "for=$remote_addr;host=\"$http_host\";proto=$scheme";
        }}
    }}
}}
"#
    )
}
