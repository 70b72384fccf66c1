//! The examples of the pages, as they stand there.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use sandpiper::client::CreateSandbox;
use sandpiper_documentation::{OF_A_DATA_PLANE, OF_A_HOST, Shell, root, runnable};
use serde_json::{Value, json};
use support::{Host, small};

tests! {
    shared: [
        the_pages_on_the_data_plane_do_what_they_show,
    ],
    alone: [
        the_pages_for_whoever_has_a_host_do_what_they_show,
    ],
}

/// For one page, of which each command may start a sandbox.
const TIMEOUT: Duration = Duration::from_secs(900);

async fn the_pages_on_the_data_plane_do_what_they_show() {
    let host = Host::shared();
    for page in OF_A_DATA_PLANE {
        let envs = [("GREETING".to_owned(), "hello".to_owned())].into();
        let sandbox = host.sandbox_with(&CreateSandbox { envs, ..small() }).await;
        let token = lasting_token(host, &sandbox.id).await;
        run(host, page, "", &[("DATA_PLANE", &sandbox.session.data_plane_url), ("TOKEN", &token)]).await;
        sandbox.delete().await;
    }
}

/// They make sandboxes, checkpoints, volumes and templates and leave some of them, so nobody else may make any here.
async fn the_pages_for_whoever_has_a_host_do_what_they_show() {
    let host = Host::shared();
    for page in OF_A_HOST {
        let (sandboxes, checkpoints) = (sandboxes(host).await, checkpoints(host).await);
        let (volumes, templates) = (volumes(host).await, templates(host).await);
        // A request that fails is to be noticed, though the page does not show its response.
        run(host, page, "fail\nshow-error\n", &[]).await;
        for id in self::sandboxes(host).await.difference(&sandboxes) {
            host.client.delete(id).await.unwrap();
        }
        for id in self::checkpoints(host).await.difference(&checkpoints) {
            host.client.delete_checkpoint(id).await.unwrap();
        }
        for id in self::volumes(host).await.difference(&volumes) {
            host.client.delete_volume(id).await.unwrap();
        }
        for slug in self::templates(host).await.difference(&templates) {
            host.client.delete_template(slug).await.unwrap();
        }
    }
}

/// Runs the examples of a page in a folder with the checkout's `docs`, as whoever has the host's keys.
async fn run(host: &Host, page: &'static str, curl_options: &str, variables: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(".curlrc"), curl_options).unwrap();
    symlink(root().join("docs"), folder.path().join("docs")).unwrap();
    let command = host.cli(&[]);
    let programs = Path::new(command.get_program()).parent().unwrap().to_str().unwrap();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let api_config = host.api_config();
    let of_the_host: [(&str, &str); 8] = [
        ("CURL_HOME", folder.path().to_str().unwrap()),
        ("PATH", &path),
        ("URL", &host.api_url),
        ("KEY", host.api_key()),
        ("OPERATOR_KEY", &host.operator_key),
        ("API_CONFIG", api_config.to_str().unwrap()),
        ("SANDPIPER_URL", &host.api_url),
        ("SANDPIPER_API_KEY", host.api_key()),
    ];
    let variables = of_the_host.iter().chain(variables);
    let shell = Shell {
        folder: folder.path().to_owned(),
        variables: variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        timeout: TIMEOUT,
    };
    let ran = tokio::task::spawn_blocking(move || shell.run(&runnable(page))).await.unwrap();
    ran.unwrap_or_else(|failed| panic!("{page}: {failed}"));
}

/// The access token that an E2B SDK gets, with which files' URLs are signed.
async fn lasting_token(host: &Host, id: &str) -> String {
    let url = format!("{}/sandboxes/{id}/connect", host.api_url);
    let key = host.api_key().replacen("spk_", "e2b_", 1);
    let request = host.client.http().post(url).header("x-api-key", key).json(&json!({"timeout": 900}));
    let connected: Value = request.send().await.unwrap().error_for_status().unwrap().json().await.unwrap();
    connected["envdAccessToken"].as_str().expect("a token").to_owned()
}

async fn sandboxes(host: &Host) -> BTreeSet<String> {
    host.client.list("").await.unwrap().into_iter().map(|sandbox| sandbox.id).collect()
}

async fn checkpoints(host: &Host) -> BTreeSet<String> {
    host.client.checkpoints(None).await.unwrap().into_iter().map(|checkpoint| checkpoint.id).collect()
}

async fn volumes(host: &Host) -> BTreeSet<String> {
    host.client.volumes().await.unwrap().into_iter().map(|volume| volume.id).collect()
}

async fn templates(host: &Host) -> BTreeSet<String> {
    host.client.templates().await.unwrap().into_iter().map(|template| template.slug).collect()
}
