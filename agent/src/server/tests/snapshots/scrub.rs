//! Files that do not hold what was written to them.

use sandpiper_images::layers::digest;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_said_to_every_owner_of_the_file_and_to_nobody_else() {
    let Some(_) = digest::testing::folder() else { return };
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (sandbox, _) = agent.create(create(&template)).await;
    let (bystander, _) = agent.create(create(&template)).await;
    sandbox.ask("pause", json!({})).await;
    sandbox.gets_digests().await;
    digest::testing::flip_a_bit(&sandbox.folder().join("disk-1.layer"), 4096);

    sandbox.ask("resume", json!({})).await;

    eventually(|| sandbox.says("disk-1.layer is damaged")).await;
    let checkpoint = sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
    let mut request = create("");
    request["checkpoint"] = json!(checkpoint_of(&checkpoint));
    let (heir, _) = agent.create(request).await;
    eventually(|| heir.says("disk-1.layer is damaged")).await;
    assert!(!bystander.says("damaged"));
    let (_, metrics) = agent.ask("GET", "/metrics", "").await;
    assert!(metrics.lines().any(|line| line.ends_with("damaged_files 1")), "{metrics}");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_written_to_and_merged_again_and_again_is_never_said_to_be_damaged() {
    let Some(_) = digest::testing::folder() else { return };
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    for _ in 0..6 {
        sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
        sandbox.ask("pause", json!({})).await;
        sandbox.gets_digests().await;
        sandbox.ask("resume", json!({})).await;
    }
    sandbox.ask("pause", json!({})).await;
    eventually(|| sandbox.layers("disk").len() <= 8 && sandbox.layers("memory").len() <= 3).await;
    sandbox.gets_digests().await;

    for layer in [sandbox.layers("disk"), sandbox.layers("memory")].concat() {
        assert_eq!(digest::testing::fits(&sandbox.folder().join(&layer)), Some(true), "{layer}");
    }
    assert!(!sandbox.says("damaged"));
    agent.end().await;
}
