//! Which images a Dockerfile names, so that they are here before any of its programs runs: credentials need not be by then.
//!
//! The text is read as buildah's parser (imagebuilder 1.2.3) reads it: lines that go on, flags, `ARG`, and the variables of
//! `FROM` and of `from=`. What cannot be told from the text alone, such as a name that an image's own `ENV` makes up, or one in
//! its `ONBUILD`, is left to buildah, which then asks without credentials.

mod text;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use super::pull;
use text::{Instruction, instructions};
use words::{Variables, expand, words};

/// What has images of its own on this machine, and asks no registry.
const TRANSPORTS: [&str; 9] = [
    "containers-storage:",
    "dir:",
    "docker-archive:",
    "docker-daemon:",
    "localhost/",
    "oci:",
    "oci-archive:",
    "sha256:",
    "tarball:",
];

/// The platform of all machines, and of what they build.
const BUILTINS: [(&str, &str); 8] = [
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETOS", "linux"),
    ("TARGETARCH", "amd64"),
    ("TARGETVARIANT", ""),
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDOS", "linux"),
    ("BUILDARCH", "amd64"),
    ("BUILDVARIANT", ""),
];

/// Stages of a Dockerfile that is still read; of one with more it is not told what it names.
const MAX_STAGES: usize = 1024;

/// An image of a registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Image {
    pub(super) reference: String,
    /// For which one it is asked, where that is said.
    pub(super) platform: Option<String>,
}

/// What a stage, and all that it needs, is made of besides the context.
#[derive(Debug, Default)]
pub(super) struct Needed {
    pub(super) images: BTreeSet<Image>,
    /// Whether there is more: files of other servers, or images that cannot be told from the text.
    pub(super) and_more: bool,
}

/// What a stage begins with, and what it takes from elsewhere.
struct Stage {
    name: String,
    variables: Variables,
    needed: Needed,
    /// Indices of stages before it.
    stages: BTreeSet<usize>,
}

/// What the stage `target` needs, or the last one: itself, and through the stages that it needs.
pub(super) fn needed(text: &str, args: &BTreeMap<String, String>, target: Option<&str>) -> Needed {
    let mut heading = Variables::default();
    let mut stages: Vec<Stage> = Vec::new();
    for instruction in instructions(text) {
        let Instruction { name, flags, rest, escape } = &instruction;
        if name == "from" {
            if stages.len() == MAX_STAGES {
                return Needed { images: BTreeSet::new(), and_more: true };
            }
            stages.push(Stage::begin(flags, rest, &heading, args, &stages));
            continue;
        }
        match (name.as_str(), stages.split_last_mut()) {
            ("arg", None) => declare(rest, *escape, &mut heading, true, args, &Variables::default()),
            ("arg", Some((stage, _))) => declare(rest, *escape, &mut stage.variables, false, args, &heading),
            ("copy" | "run", Some((stage, before))) => {
                for from in from_of(name, flags, &stage.variables) {
                    match from {
                        Some(from) => stage.need(&from, None, before),
                        None => stage.needed.and_more = true,
                    }
                }
            }
            ("add", Some((stage, _))) => stage.needed.and_more |= may_be_remote(rest),
            _ => {}
        }
    }
    reachable(stages, target)
}

impl Stage {
    fn begin(
        flags: &[String],
        rest: &str,
        heading: &Variables,
        args: &BTreeMap<String, String>,
        before: &[Self],
    ) -> Self {
        let mut parts = rest.split(['\t', '\u{b}', '\u{c}', '\r', ' ']).filter(|part| !part.is_empty());
        let image = parts.next().unwrap_or_default();
        let name = match (parts.next(), parts.next()) {
            (Some(word), Some(name)) if word.eq_ignore_ascii_case("as") => name.to_owned(),
            _ => before.len().to_string(),
        };
        let mut stage =
            Self { name, variables: Variables::default(), needed: Needed::default(), stages: BTreeSet::new() };
        let platform = flags.iter().find_map(|flag| flag.strip_prefix("--platform="));
        let platform = platform.and_then(|platform| expand_platform(platform, args));
        match expand(image, heading, true) {
            Some(image) if image == "scratch" => {}
            Some(image) => stage.need(&image, platform, before),
            None => stage.needed.and_more = true,
        }
        stage
    }

    /// Notes that it needs what `name` stands for: a stage before it, or an image.
    fn need(&mut self, name: &str, platform: Option<String>, before: &[Self]) {
        let index = name.parse().ok().filter(|index| *index < before.len());
        let named = before.iter().enumerate().filter(|(_, stage)| stage.name == name).map(|(index, _)| index);
        let stages: Vec<usize> = index.into_iter().chain(named).collect();
        if stages.is_empty() {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'/';
            match reference(name).filter(|_| platform.iter().all(|one| one.bytes().all(is_plain))) {
                Some(reference) => drop(self.needed.images.insert(Image { reference, platform })),
                None => self.needed.and_more = true,
            }
        }
        self.stages.extend(stages);
    }
}

/// The platform that `FROM` says. Only what the order gives, and what the machine is, counts in it.
fn expand_platform(platform: &str, args: &BTreeMap<String, String>) -> Option<String> {
    let mut given = Variables::default();
    for (name, value) in BUILTINS.into_iter().filter(|(name, _)| name.starts_with("TARGET")) {
        given.set(name, Some(value.to_owned()));
    }
    for (name, value) in args {
        given.set(name, Some(value.clone()));
    }
    expand(platform, &given, true).filter(|platform| !platform.is_empty())
}

/// Names that an instruction takes files from; `None` for one that cannot be told.
fn from_of(instruction: &str, flags: &[String], variables: &Variables) -> Vec<Option<String>> {
    let from = flags.iter().filter_map(|flag| match instruction {
        "copy" => Some(expand(flag.strip_prefix("--from=")?, variables, true)),
        // Variables of the environment count here too, and those of an image are not known yet.
        _ => Some(expand(
            flag.strip_prefix("--mount=")?.split(',').find_map(|field| field.strip_prefix("from="))?,
            variables,
            false,
        )),
    });
    from.collect()
}

/// Whether `ADD` may ask another server for a file, or for a repository.
fn may_be_remote(rest: &str) -> bool {
    ["://", "git@", "$"].iter().any(|sign| rest.contains(sign))
}

/// Notes what an `ARG` declares. Its own words have variables too, which are not `known` to be all where an image's count.
fn declare(
    rest: &str,
    escape: char,
    variables: &mut Variables,
    is_known: bool,
    args: &BTreeMap<String, String>,
    heading: &Variables,
) {
    for word in words(rest, escape) {
        let (name, default) = match word.split_once('=') {
            Some((name, default)) => (name, Some(expand(default, variables, is_known))),
            None => (word.as_str(), None),
        };
        let builtin = BUILTINS.iter().find(|(builtin, _)| *builtin == name).map(|(_, value)| Some((*value).to_owned()));
        let given = args.get(name).map(|value| Some(value.clone()));
        let value = match default {
            Some(_) => given.or(default),
            None => given.or_else(|| heading.value(name)).or(builtin),
        };
        if let Some(value) = value {
            variables.set(name, value);
        }
    }
}

/// The name as a registry's, if it is one.
fn reference(name: &str) -> Option<String> {
    let name = name.strip_prefix("docker://").unwrap_or(name);
    let is_id = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_elsewhere = TRANSPORTS.iter().any(|transport| name.starts_with(transport));
    (!is_id && !is_elsewhere && pull::check(name).is_ok()).then(|| name.to_owned())
}

fn reachable(stages: Vec<Stage>, target: Option<&str>) -> Needed {
    let last = match target {
        Some(target) => stages.iter().position(|stage| stage.name == target),
        None => stages.len().checked_sub(1),
    };
    let mut wanted: BTreeSet<usize> = last.into_iter().collect();
    let mut needed = Needed::default();
    // A stage needs only those before it.
    for (index, stage) in stages.into_iter().enumerate().rev() {
        if wanted.contains(&index) {
            wanted.extend(stage.stages);
            needed.images.extend(stage.needed.images);
            needed.and_more |= stage.needed.and_more;
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(text: &str, args: &[(&str, &str)], target: Option<&str>) -> Vec<String> {
        let args = args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        needed(text, &args, target).images.into_iter().map(|image| image.reference).collect()
    }

    #[test]
    fn images_are_found_wherever_a_dockerfile_names_them() {
        let text = "# syntax=x\nFROM a.example/one:1 AS tools\nfrom --platform=linux/arm64 docker://two\n\
            COPY --from=tools /a /b\nCOPY --chown=1 --from=three /a /b\nCOPY --from=0 /a /b\n\
            RUN --mount=type=bind,\\\n# no\nfrom=four,target=/x \\\n  --mount=from=tools,target=/y true --from=none\n\
            ONBUILD COPY --from=later /a /b\nRUN echo FROM five\n";
        assert_eq!(references(text, &[], None), ["a.example/one:1", "four", "three", "two"]);
        let two = needed(text, &BTreeMap::new(), None).images.into_iter().find(|image| image.reference == "two");
        assert_eq!(two.unwrap().platform.as_deref(), Some("linux/arm64"));
    }

    #[test]
    fn variables_are_put_in_as_buildah_does() {
        let heading = "ARG A=a.example\nARG B=\"x y\" C='c' D\nARG E=${A}/e\n";
        for (word, reference) in [
            ("$A/b", "a.example/b"),
            ("${A}/${C}", "a.example/c"),
            ("${D:-none}/b", "none/b"),
            ("${D:+set}b", "b"),
            ("${C:+set}/b", "set/b"),
            ("$E:1", "a.example/e:1"),
            ("\"$A\"/q", "a.example/q"),
            ("image-${TARGETARCH}b", "image-b"),
        ] {
            assert_eq!(references(&format!("{heading}FROM {word}\n"), &[], None), [reference], "{word}");
        }
        let text = format!("{heading}FROM scratch\nARG A\nARG F=$HOME\nCOPY --from=$A/x / /\nCOPY --from=$F / /\n");
        assert_eq!(references(&text, &[("A", "b.example"), ("F", "f")], None), ["b.example/x", "f"]);
        assert_eq!(references(&text, &[], None), ["a.example/x"], "an image's own variables are not known");
        assert_eq!(references("ARG A=$(B\nFROM ${A\n", &[], None), [""; 0]);
    }

    #[test]
    fn only_what_the_target_needs_is_asked_for() {
        let text = "FROM a AS one\nFROM b AS two\nCOPY --from=one / /\nFROM c AS three\nFROM one\n";
        assert_eq!(references(text, &[], None), ["a"]);
        assert_eq!(references(text, &[], Some("two")), ["a", "b"]);
        assert_eq!(references(text, &[], Some("none")), [""; 0]);
    }

    #[test]
    fn what_is_no_registrys_is_left_to_buildah() {
        for name in ["scratch", "oci:/srv", "docker-archive:/a.tar", "localhost/a", &"0a".repeat(32), "a$(b)"] {
            assert_eq!(references(&format!("FROM {name}\n"), &[], None), [""; 0], "{name}");
        }
    }

    #[test]
    fn what_comes_from_elsewhere_is_told_from_what_an_image_and_the_context_give() {
        for (text, and_more) in [
            ("FROM a\nADD b.tar /\nCOPY --from=c /d /d\n", false),
            ("FROM scratch\nRUN --mount=type=cache,target=/x curl http://d\n", false),
            ("FROM a\nADD http://d/e /\n", true),
            ("FROM a\nADD git@d:e /\n", true),
            ("FROM a\nARG U\nADD $U /\n", true),
            ("FROM localhost/a\n", true),
            ("FROM a$(b\n", true),
            ("FROM a\nRUN --mount=from=$B,target=/x true\n", true),
            ("FROM a\nADD http://d/e /\nFROM b\n", false),
        ] {
            assert_eq!(needed(text, &BTreeMap::new(), None).and_more, and_more, "{text}");
        }
    }

    #[test]
    fn another_escape_character_and_windows_lines_are_read() {
        let text = "# escape=`\r\nARG A=a`\r\n.example\r\nFROM $A/b\\c`\r\n\r\n";
        assert_eq!(references(text, &[], None), ["a.example/bc"]);
    }

    #[test]
    fn a_name_without_end_is_not_followed_to_its_end() {
        let deep = "${A:-".repeat(50_000);
        assert_eq!(references(&format!("FROM {deep}\n"), &[], None), [""; 0]);
    }
}
