//! Images that a Dockerfile names: who may be asked for them, with what, and what is left of that for the tenant's programs.

use serde_json::{Value, json};

use crate::registry::{HOST, Registry};
use crate::support::{Machine, order};

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
