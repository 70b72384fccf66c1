//! Images that a Dockerfile names: who may be asked for them, with what, and what is left of that for the tenant's programs.

use sandpiper_protocol::builder::Event;
use serde_json::{Value, json};

use crate::registry::{HOST, Registry};
use crate::support::{Machine, Said, order, run};

/// What buildah 1.28 lets a `RUN` see of this machine.
const LOOK: &str = "RUN --mount=type=cache,id=../../../../run/sandpiper-builder,target=/x";

fn build_order(text: &str, registry: &Registry) -> Value {
    let mut order = order(json!({"kind": "dockerfile", "text": text}));
    order["registries"] = registry.settings();
    order["registries"]["credentials"] = json!({HOST: {"username": "operator", "password": "hunter2hunter2"}});
    order
}

#[test]
fn programs_of_a_build_find_no_credentials_and_make_no_devices() {
    let Some(machine) = Machine::new("credentials", 256) else { return };
    let Some(registry) = Registry::start("credentials") else { return };
    let text = format!(
        "ARG NAME=debian\nFROM {HOST}/${{NAME}}:12\n{LOOK} cat /x/auth.json >/seen; grep -rl auth /x >/files\n\
         RUN mknod /disk b 8 0; echo $? >/status\n"
    );
    let mut order = build_order(&text, &registry);
    order["source"]["credentials"] = json!({"other.example": {"username": "tenant", "password": "hunter3hunter3"}});

    let said = machine.build(order);

    said.finished();
    assert_eq!(machine.in_output("cat seen status; ls disk 2>/dev/null || true"), "{\"auths\":{}}1\n");
    assert!(!said.text.contains("hunter"), "{}", said.text);
}

#[test]
fn digests_of_all_images_are_told_and_what_has_one_is_not_asked_for_twice() {
    let Some(machine) = Machine::new("digests", 256) else { return };
    let Some(registry) = Registry::start("digests") else { return };
    let name = format!("{HOST}/debian:12");
    let first = machine.build(build_order(
        &format!(
            "FROM {name} AS base\nFROM base\nCOPY --from={name} /etc/passwd /copied\n\
             RUN --mount=type=bind,from={name},target=/x test -e /x/etc && echo 'STEP 1/1: FROM other'\n"
        ),
        &registry,
    ));
    let digests = first.finished()["digests"].take();
    let digest = digests[&name].as_str().unwrap().to_owned();
    assert_eq!(digests, json!({name.as_str(): digest}));

    let exact = format!("{HOST}/debian@{digest}");
    let text = format!("FROM {exact}\nRUN true\n");
    machine.empty();
    machine.build(build_order(&text, &registry)).finished();
    let order = build_order(&text, &registry);
    drop(registry);
    machine.empty();
    assert_eq!(machine.build(order).finished()["digests"], json!({exact.as_str(): digest}));
}

#[test]
fn a_registry_that_is_not_allowed_is_asked_for_no_image_of_a_dockerfile() {
    let Some(machine) = Machine::new("allowed", 64) else { return };
    for text in [
        "FROM scratch AS a\nFROM registry.example/name:1\n",
        "FROM scratch\nCOPY --from=registry.example/name:1 / /\n",
        "FROM scratch\nRUN --mount=from=registry.example/name:1,target=/x true\n",
    ] {
        let mut order = order(json!({"kind": "dockerfile", "text": text}));
        order["registries"] = json!({"allowed": ["only.example"]});
        let said = machine.build(order);
        let error = said.error();
        let sentence = "This host takes no images of the registry registry.example, only of only.example";
        assert_eq!((error.code.as_str(), error.message.as_str()), ("source_refused", sentence), "{text}");
    }
}

#[test]
fn the_same_order_of_the_same_images_is_not_carried_out_again() {
    let Some(machine) = Machine::new("same-order", 256) else { return };
    let Some(registry) = Registry::start("same-order") else { return };
    let text = format!("FROM {HOST}/debian:12\nRUN date +%N >/made\nCOPY file /\n");
    let file = machine.scratch("uploads").join("context.tar");
    let send = |content: &str| {
        let folder = machine.scratch("context");
        std::fs::write(folder.join("file"), content).unwrap();
        run("tar", &["-C", folder.to_str().unwrap(), "--mtime=@0", "-cf", file.to_str().unwrap(), "."]);
        machine.empty();
        machine.upload("upl_1", &file);
    };
    let order = |known: &[&Value]| {
        let mut order = build_order(&text, &registry);
        order["source"]["context"] = json!("upl_1");
        order["known"] = json!(known);
        order["contents"] = json!({"upl_1": run("sha256sum", &[file.to_str().unwrap()])});
        order
    };
    send("one");
    let first = machine.build(order(&[]));
    let (made, image) = (first.finished(), first.finished()["image"].clone());
    // From here on a run of buildah would be one too many.
    let carried_out = |said: &Said| said.text.contains("Pulling ");

    send("two");
    let mut question = order(&[&image]);
    question["is_question"] = json!(true);
    assert!(matches!(machine.build(question).events[..], [Event::NotBuilt]));

    send("one");
    let mut question = order(&[&image]);
    question["is_question"] = json!(true);
    assert_eq!(machine.build(question).finished()["image"], image);
    let again = machine.build(order(&[&image]));
    assert!(!carried_out(&again), "{}", again.text);
    let mut expected = made.clone();
    expected["is_known"] = json!(true);
    assert_eq!(again.finished(), expected);
    assert_eq!(again.steps(), [(1, 3, true), (2, 3, true), (3, 3, true)]);

    // What the agent does not have any more is written again.
    send("one");
    let without = machine.build(order(&[]));
    assert!(carried_out(&without) && without.finished()["image"] == image, "{}", without.text);

    send("two");
    let other = machine.build(order(&[&image]));
    assert!(carried_out(&other) && other.finished()["image"] != image, "{}", other.text);

    let mut without_cache = order(&[&image]);
    without_cache["source"]["no_cache"] = json!(true);
    send("one");
    let said = machine.build(without_cache);
    assert!(carried_out(&said) && said.finished()["image"] != image, "{}", said.text);

    registry.push_other_base();
    send("one");
    let moved = machine.build(order(&[&image, &said.finished()["image"]]));
    assert!(carried_out(&moved) && moved.finished()["digests"] != made["digests"], "{}", moved.text);
}

#[test]
fn an_order_with_a_file_of_another_server_is_carried_out_each_time() {
    let Some(machine) = Machine::new("other-servers", 256) else { return };
    let Some(registry) = Registry::start("other-servers") else { return };
    let text = format!("FROM {HOST}/debian:12\nADD http://{}/v2/ /answer\n", registry.address());
    let build = |known: Option<Value>| {
        let mut order = build_order(&text, &registry);
        order["known"] = json!(known.as_slice());
        machine.empty();
        machine.build(order)
    };

    let first = build(None);
    let again = build(Some(first.finished()["image"].take()));

    assert!(again.text.contains("Pulling "), "{}", again.text);
}
