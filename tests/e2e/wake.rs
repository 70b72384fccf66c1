//! Requests to paused sandboxes.

use futures_util::future::try_join_all;
use sandpiper::client::{CreateSandbox, DataPlane, ExposedPort, Lifecycle, OnTimeout};
use support::{Host, Sandbox, eventually, shell, small};

tests! {
    shared: [
        a_request_to_a_paused_sandbox_that_wakes_is_served,
        requests_that_come_together_share_one_resume,
        without_auto_resume_a_request_is_refused_and_says_that_the_sandbox_is_paused,
        asking_for_its_health_without_a_token_wakes_no_sandbox,
        a_request_over_the_teams_quota_wakes_nothing_and_says_what_to_do,
    ],
    alone: [],
}

async fn a_request_to_a_paused_sandbox_that_wakes_is_served() {
    let host = Host::shared();
    let sandbox = paused_at_its_deadline(true, &[ExposedPort::public(8000)]).await;
    sandbox.out("mkdir site; echo 'still here' > site/index.html").await;
    let server = "exec python3 -m http.server 8000 --bind 127.0.0.1 --directory site";
    sandbox.data_plane.start(&shell(server, None)).await.unwrap();
    eventually("the server listens", || async { host.client.port(&sandbox.id, 8000).await.unwrap().status == "open" })
        .await;
    let preview = host.client.port(&sandbox.id, 8000).await.unwrap().url;

    sandbox.pause().await.expect("the sandbox is paused");
    let file = sandbox.data_plane.read_file("site/index.html", None).await.expect("the data plane wakes it");
    assert_eq!(file, b"still here\n");
    eventually("the API sees that it is awake", || async { state(&sandbox).await == "ready" }).await;

    sandbox.pause().await.expect("the sandbox is paused again");
    let page = host.client.http().get(&preview).send().await.expect("the proxy answers");
    let status = page.status();
    let body = page.text().await.unwrap();
    assert_eq!((status.as_u16(), body.as_str()), (200, "still here\n"), "the preview wakes it");
    eventually("the API sees that it is awake", || async { state(&sandbox).await == "ready" }).await;
}

async fn requests_that_come_together_share_one_resume() {
    let sandbox = paused_at_its_deadline(true, &[]).await;
    let before = generation(sandbox.data_plane.clone()).await;
    sandbox.pause().await.expect("the sandbox is paused");

    let requests = (0..256).map(|_| tokio::spawn(generation(sandbox.data_plane.clone())));
    let seen = try_join_all(requests).await.expect("every request comes to an end");

    assert_eq!(seen, [before + 1; 256]);
    assert_eq!(generation(sandbox.data_plane.clone()).await, before + 1);
}

async fn without_auto_resume_a_request_is_refused_and_says_that_the_sandbox_is_paused() {
    let host = Host::shared();
    let sandbox = paused_at_its_deadline(false, &[ExposedPort::public(8000)]).await;
    let preview = host.client.port(&sandbox.id, 8000).await.unwrap().url;
    sandbox.pause().await.expect("the sandbox is paused");

    let refused =
        sandbox.data_plane.read_file("/etc/hostname", None).await.expect_err("a paused sandbox serves nothing");
    let page = host.client.http().get(&preview).send().await.expect("the proxy answers");
    let status = page.status();
    let body = page.text().await.unwrap();

    assert_eq!(refused.status(), Some(502), "{refused}");
    assert!(refused.to_string().contains("paused"), "{refused}");
    assert_eq!(status, 502, "{body}");
    assert!(body.contains("paused"), "{body}");
    assert_eq!(state(&sandbox).await, "stopped");
}

async fn asking_for_its_health_without_a_token_wakes_no_sandbox() {
    let host = Host::shared();
    let sandbox = paused_at_its_deadline(true, &[]).await;
    let health = format!("{}/health", sandbox.session.data_plane_url);
    assert!(host.client.http().get(&health).send().await.unwrap().status().is_success());
    sandbox.pause().await.expect("the sandbox is paused");

    let without = host.client.http().get(&health).send().await.unwrap().status();
    let wrong = host.client.http().get(&health).header("x-access-token", "nonsense").send().await.unwrap().status();

    assert_eq!(without, 502);
    assert!(wrong.is_client_error() || wrong == 502, "{wrong}");
    assert_eq!((state(&sandbox).await.as_str(), host.monitor_of(&sandbox.id)), ("stopped", None));
}

async fn a_request_over_the_teams_quota_wakes_nothing_and_says_what_to_do() {
    let host = Host::shared();
    let client = host.client_of_one();
    let lifecycle = Some(Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: true, ..Lifecycle::default() });
    let request = CreateSandbox { lifecycle, exposed_ports: vec![ExposedPort::public(8000)], ..small() };
    let paused = Sandbox::create(&client, &request).await.expect("there is room for one");
    let preview = client.port(&paused.id, 8000).await.unwrap().url;
    let flushes = "import os, time; fd = os.open('f', os.O_CREAT | os.O_WRONLY); began = time.monotonic(); \
        [(os.pwrite(fd, b'x', 0), os.fsync(fd)) for _ in range(40)]; print(time.monotonic() - began)";
    let seconds: f64 = paused.out(&format!("python3 -c \"{flushes}\"")).await.trim().parse().unwrap();
    assert!(seconds > 2.5, "the plan has 10 flushes a second, of which 10 pass at once: {seconds} s for 40");
    paused.pause().await.expect("it is paused");
    let mut other = Sandbox::create(&client, &request).await.expect("there is room again");

    let refused = paused.data_plane.read_file("/etc/hostname", None).await.expect_err("the quota is full");
    let page = client.http().get(&preview).send().await.expect("the proxy answers");
    let status = page.status();
    let body = page.text().await.unwrap();

    assert_eq!(refused.status(), Some(429), "{refused}");
    assert!(refused.to_string().contains("quota is full"), "{refused}");
    assert!(status == 429 && body.contains("sandbox_quota_exceeded"), "{status} {body}");
    assert_eq!(client.show(&paused.id).await.unwrap().state, "stopped");

    other.pause().await.expect("the other is paused");
    paused.data_plane.read_file("/etc/hostname", None).await.expect("there is room: it wakes");
    let full = other.resume(None).await.expect_err("the quota is full again");
    assert_eq!(full.code(), Some("sandbox_quota_exceeded"), "{full}");
}

/// A sandbox that is paused, not destroyed, when its time is over, far in the future.
async fn paused_at_its_deadline(auto_resume: bool, ports: &[ExposedPort]) -> Sandbox {
    let lifecycle = Some(Lifecycle { on_timeout: OnTimeout::Pause, auto_resume, ..Lifecycle::default() });
    Host::shared().sandbox_with(&CreateSandbox { lifecycle, exposed_ports: ports.to_vec(), ..small() }).await
}

async fn state(sandbox: &Sandbox) -> String {
    Host::shared().client.show(&sandbox.id).await.expect("the sandbox is shown").state
}

/// How often the sandbox was started, as its programs see it.
async fn generation(data_plane: DataPlane) -> u64 {
    let file = data_plane.read_file("/run/sandpiper/generation", None).await;
    let file = file.unwrap_or_else(|error| panic!("the generation is read: {error}"));
    String::from_utf8(file).unwrap().trim().parse().expect("a number")
}
