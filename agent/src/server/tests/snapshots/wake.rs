//! Requests that reach a paused sandbox through the ingress.

use futures_util::future::join_all;
use sandpiper_ingress::{Ingress, IngressConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// As many as one sandbox may have in flight.
const REQUESTS: usize = 256;

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_together_share_one_resume_and_are_all_answered() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    let (sandbox, _) = agent.create(request).await;
    let config = IngressConfig { listen: "127.0.0.1:0".parse().unwrap(), ..IngressConfig::default() };
    let state = agent.folder.path().join("state");
    let sessions = Sessions::open(&state.join("session.key"), Duration::from_secs(60)).unwrap();
    let (token, _) = sessions.mint(&sandbox.id, None);
    let ingress = Ingress::bind(&config, &state, Arc::new(agent.sandboxes.clone()), Arc::new(sessions)).await.unwrap();
    let (address, stats) = (ingress.address(), ingress.stats());
    let end = CancellationToken::new();
    let served = tokio::spawn(ingress.serve(end.clone()));
    let host = format!("{}.sandbox.localhost", agent.sandboxes.find(&sandbox.id).unwrap().route_token);
    let head = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nX-Access-Token: {token}\r\nConnection: close\r\n\r\n");

    sandbox.ask("pause", json!({})).await;
    agent.behave("hold-restore");
    let requests: Vec<_> = (0..REQUESTS).map(|_| tokio::spawn(ask(address, head.clone()))).collect();
    eventually(|| stats.waking() == REQUESTS as i64).await;
    agent.behave("");
    let answers = join_all(requests).await;

    for answer in answers {
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
    let (_, metrics) = agent.ask("GET", "/metrics", "").await;
    let resumes = r#"sandbox_operation_seconds_count{operation="Resume",outcome="Done"} 1"#;
    assert!(metrics.contains(resumes), "{metrics}");
    assert_eq!(sandbox.record()["generation"], 2);
    sandbox.delete().await;
    end.cancel();
    served.await.unwrap();
    agent.end().await;
}

/// Sends a request on a connection of its own, and reads all of its answer.
async fn ask(address: std::net::SocketAddr, head: String) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
