//! Versions that a builder's machine makes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;
use crate::server::tests::monitor::builder::WORDS;

fn dockerfile(upload: Option<&str>) -> Value {
    json!({"kind": "dockerfile", "text": "FROM registry.example/app", "context": upload})
}

fn order_of(team: &str, source: Value) -> Value {
    let mut order = order(&id::generate("ver"), source);
    order["team"] = json!(team);
    order
}

impl Agent {
    /// With a builder's template.
    async fn with_builder() -> Self {
        let agent = Self::with_machines().await;
        agent.import_builder().await;
        agent
    }

    async fn import_builder(&self) {
        let mut builder = self.image();
        builder["slug"] = json!("builder");
        assert_eq!(self.ask("POST", "/templates", builder.to_string()).await.0, 201);
    }

    async fn texts(&self, order: &Value) -> Vec<String> {
        self.build_log(order, "").await.entries.into_iter().map(|entry| entry.text).collect()
    }

    fn machines_of_builds(&self) -> usize {
        fs::read_dir(self.folder.path().join("state/helpers")).unwrap().count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_makes_a_version_of_what_was_uploaded_and_leaves_its_cache_alone() {
    let agent = Agent::with_builder().await;
    let upload = id::generate("upl");
    let (status, sent) = agent.ask("PUT", &format!("/uploads/{upload}"), "x".repeat(100_000)).await;
    assert_eq!(status, 201, "{sent}");
    let first = order_of("team_a", dockerfile(Some(&upload)));

    agent.build(&first).await;
    let built = agent.built(&first).await;

    let version = built.version.unwrap_or_else(|| panic!("{:?}", built.error));
    assert_eq!((version.settings.workdir.as_deref(), version.command.as_deref()), (Some("/app"), Some("serve")));
    assert_eq!(version.images["registry.example/app"], "sha256:1");
    let texts = agent.texts(&first).await;
    assert!(
        texts.contains(&"[1/2] FROM".to_owned()) && texts.contains(&"the cache holds \"\"".to_owned()),
        "{texts:?}"
    );
    let uploaded = format!("uploads [(\"/srv/output/.sandpiper-uploads/{upload}\", 100000)]");
    assert!(texts.contains(&uploaded), "{texts:?}");
    let template = agent.sandboxes.context().templates.find(&version.id).unwrap();
    let mut word = [0; 8];
    let layer = fs::File::open(template.folder.join(&template.disk[0].name)).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&layer, &mut word, WORDS).unwrap();
    assert_eq!((&word, template.disk.len()), (b"new root", 1));
    assert_eq!(agent.machines_of_builds(), 0);

    let again = order_of("team_a", json!({"kind": "image", "reference": "registry.example/app"}));
    let other = order_of("team_b", json!({"kind": "image", "reference": "registry.example/app"}));
    for (order, cache) in [(&again, "the cache holds \"results\""), (&other, "the cache holds \"\"")] {
        agent.build(order).await;
        assert_eq!(agent.built(order).await.state, BuildState::Ready);
        let texts = agent.texts(order).await;
        assert!(texts.contains(&cache.to_owned()), "{texts:?}");
    }
    let (sandbox, shown) = agent.create(create(&version.id)).await;
    assert_eq!(shown["start"], "warm");
    let told = monitor::defaults_told(agent.folder.path(), &sandbox.id);
    assert_eq!((told.settings.env["A"].as_str(), told.start.unwrap().command.as_str()), ("1", "serve"));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_the_same_image_has_the_disk_and_the_warm_snapshot_of_the_earlier_one() {
    let agent = Agent::with_builder().await;
    let [first, second, foreign] = ["team_a", "team_a", "team_b"].map(|team| order_of(team, dockerfile(None)));
    for order in [&first, &second, &foreign] {
        agent.build(order).await;
        let built = agent.built(order).await;
        assert_eq!(built.state, BuildState::Ready, "{:?}", built.error);
    }

    let context = agent.sandboxes.context();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let files = |order: &Value| {
        let template = context.templates.find(order["id"].as_str().unwrap()).unwrap();
        let mut warm = context.warm.list().into_iter();
        let warm = warm.find(|warm| warm.snapshot.template_version == template.version.id).unwrap();
        let memory = warm.folder.join(&warm.snapshot.files.memory[0].name);
        (inode(&template.folder.join(&template.disk[0].name)), inode(&memory))
    };
    assert_eq!(files(&second), files(&first));
    assert!(files(&foreign).0 != files(&first).0 && files(&foreign).1 != files(&first).1, "another team's");
    assert_eq!(agent.ask("DELETE", &format!("/templates/{}", first["id"].as_str().unwrap()), "").await.0, 204);
    let (_, shown) = agent.create(create(second["id"].as_str().unwrap())).await;
    assert_eq!(shown["start"], "warm");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_built_before_is_asked_for_with_the_cache_alone() {
    let agent = Agent::with_builder().await;
    let [first, second] = [(); 2].map(|()| order_of("team_a", dockerfile(None)));
    agent.build(&first).await;
    agent.built(&first).await;
    agent.behave("builder-remembers");

    agent.build(&second).await;
    let built = agent.built(&second).await;

    assert_eq!(built.state, BuildState::Ready, "{:?}", built.error);
    let texts = agent.texts(&second).await;
    assert!(texts.contains(&r#"asked with ["/srv/cache"]"#.to_owned()), "{texts:?}");
    assert!(!texts.iter().any(|text| text.starts_with("source ")), "it was built again: {texts:?}");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_begin_with_a_versions_disk_and_settings() {
    let agent = Agent::with_builder().await;
    let first = order_of("team_a", dockerfile(None));
    agent.build(&first).await;
    let base = agent.built(&first).await.version.unwrap().id;
    let steps = json!({"kind": "steps", "from": {"version": {"version": base}}, "steps": []});
    let second = order_of("team_a", steps);

    agent.build(&second).await;
    let built = agent.built(&second).await;

    assert_eq!(built.state, BuildState::Ready, "{:?}", built.error);
    let texts = agent.texts(&second).await;
    let mounted = r#"mounted ["/srv/cache", "/srv/output", "/srv/base"]"#;
    assert!(texts.iter().any(|text| text == mounted), "{texts:?}");
    assert!(texts.iter().any(|text| text == r#"base settings Some("/app")"#), "{texts:?}");
    assert_eq!(agent.ask("DELETE", &format!("/templates/{base}"), "").await.0, 204);
    agent.create(create(second["id"].as_str().unwrap())).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_or_whose_program_dies_says_why_and_leaves_its_cache_alone() {
    let agent = Agent::with_builder().await;
    let upload = id::generate("upl");
    assert_eq!(agent.ask("PUT", &format!("/uploads/{upload}"), "a context").await.0, 201);
    for (word, code) in [("build-fails", "no_shell"), ("build-dies", "memory_exhausted"), ("full-builder", "disk_full")]
    {
        agent.behave(word);
        let order = order_of("team_a", dockerfile(Some(&upload)));
        agent.build(&order).await;

        let built = agent.built(&order).await;

        assert_eq!((built.state, built.error.unwrap().code.as_str()), (BuildState::Failed, code));
        agent.assert_not_built(&order).await;
        assert_eq!(agent.machines_of_builds(), 0);
        assert_eq!(fs::read_dir(agent.folder.path().join("state/caches")).unwrap().count(), 1);
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builder_that_breaks_down_is_replaced_once() {
    let agent = Agent::with_builder().await;
    let upload = id::generate("upl");
    assert_eq!(agent.ask("PUT", &format!("/uploads/{upload}"), "a context").await.0, 201);
    for (word, state) in [("first-builder-breaks", BuildState::Ready), ("builders-break", BuildState::Failed)] {
        agent.behave(word);
        let order = order_of("team_a", dockerfile(Some(&upload)));
        agent.build(&order).await;

        let built = agent.built(&order).await;

        assert_eq!(built.state, state, "{:?}", built.error);
        let texts = agent.texts(&order).await;
        let replaced = |text: &&String| text.contains("broke down") && text.ends_with("building in another one");
        assert_eq!(texts.iter().filter(replaced).count(), 1, "{texts:?}");
        if let Some(error) = built.error {
            assert_eq!(error.code, "host_failed");
            assert!(error.message.starts_with("The builder's machine broke down (The monitor ended"), "{error:?}");
        }
        assert_eq!(agent.machines_of_builds(), 0);
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_has_one_machine_and_what_waits_can_be_cancelled() {
    let agent = Agent::with_builder().await;
    agent.behave("build-hangs");
    let [first, second, other] = ["team_a", "team_a", "team_b"].map(|team| order_of(team, dockerfile(None)));
    for order in [&first, &second, &other] {
        agent.build(order).await;
    }
    agent.is(&first, BuildState::Building).await;
    agent.is(&other, BuildState::Building).await;
    let waiting = agent.shown(&second).await;
    assert_eq!((waiting.state, waiting.position, waiting.started_at), (BuildState::Queued, Some(0), None));

    for order in [&second, &first] {
        let path = format!("/builds/{}/cancel", order["id"].as_str().unwrap());
        let (_, body) = agent.ask("POST", &path, "").await;
        assert!(body.contains(r#""state":"cancelled""#), "{body}");
        agent.assert_not_built(order).await;
    }
    agent.behave("");

    assert_eq!(agent.built(&other).await.state, BuildState::Ready);
    assert_eq!(agent.machines_of_builds(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_leaves_of_builds_fails_or_goes_on_and_no_machine_stays() {
    let agent = Agent::with_builder().await;
    agent.behave("build-hangs");
    let building = order_of("team_a", dockerfile(None));
    let queued = order_of("team_a", dockerfile(None));
    let mut source = dockerfile(None);
    source["secrets"] = json!({"TOKEN": "hunter2"});
    let secret = order_of("team_a", source);
    for order in [&building, &queued, &secret] {
        agent.build(order).await;
    }
    agent.is(&building, BuildState::Building).await;
    let record = agent.folder.path().join("state/builds").join(secret["id"].as_str().unwrap()).join("build.json");
    assert!(!fs::read_to_string(record).unwrap().contains("hunter2"));

    let folder = agent.folder.path().to_owned();
    let agent = agent.follow_after(|| fs::remove_file(folder.join("behaviour")).unwrap()).await;

    for order in [&building, &secret] {
        let built = agent.built(order).await;
        assert_eq!((built.state, built.error.unwrap().code.as_str()), (BuildState::Failed, "host_restarted"));
        agent.assert_not_built(order).await;
    }
    assert_eq!(agent.built(&queued).await.state, BuildState::Ready);
    assert_eq!(agent.machines_of_builds(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_there_until_it_is_deleted_and_a_build_of_one_that_is_not_is_refused() {
    let agent = Agent::with_builder().await;
    let upload = id::generate("upl");
    let path = format!("/uploads/{upload}");
    let (status, _, message) =
        agent.error("POST", "/builds", order_of("team_a", dockerfile(Some(&upload))).to_string()).await;
    assert!(status == 400 && message.contains(&upload), "{message}");

    let (status, sent) = agent.ask("PUT", &path, "hello").await;
    assert_eq!(status, 201);
    assert!(sent.contains("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"), "{sent}");
    assert_eq!(agent.ask("PUT", &path, "other").await, (200, sent.clone()));
    assert_eq!(agent.ask("GET", &path, "").await, (200, sent));
    assert_eq!(agent.error("PUT", "/uploads/uplx", "hello").await.0, 400);

    assert_eq!(agent.ask("DELETE", &path, "").await.0, 204);
    assert_eq!((agent.ask("DELETE", &path, "").await.0, agent.ask("GET", &path, "").await.0), (404, 404));
    agent.end().await;
}
