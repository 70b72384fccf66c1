//! Why a build failed, and whose fault it is.

use std::fmt::Display;

use sandpiper_protocol::template::BuildError;

/// Why a build failed, as a sentence for the person whose build it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{message}")]
    Step { step: Option<u32>, message: String },
    #[error("{0}")]
    SourceRefused(String),
    #[error("{0}")]
    SourceUnreachable(String),
    #[error("{0}")]
    NoShell(String),
    #[error(
        "The disk is full: the template needs a larger one, or the build has to write less{}",
        if *is_cache { "; it was the team's build cache, which was emptied" } else { "" }
    )]
    DiskFull { step: Option<u32>, is_cache: bool },
    #[error("The build took all of its memory and was ended: give it more, or do less at a time")]
    MemoryExhausted { step: Option<u32> },
    #[error("{0}")]
    Host(String),
}

impl Failure {
    /// What went wrong here, with no fault of the source. A full disk is the exception.
    pub(crate) fn host(what: &str, error: &dyn Display) -> Self {
        let error = error.to_string();
        if is_full(&error) {
            Self::DiskFull { step: None, is_cache: false }
        } else {
            Self::Host(format!("{what}: {error}"))
        }
    }

    /// The same of work in the cache: what is full then is that.
    pub(crate) fn in_cache(self) -> Self {
        match self {
            Self::DiskFull { step, .. } => Self::DiskFull { step, is_cache: true },
            other => other,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Step { .. } => "step_failed",
            Self::SourceRefused(_) => "source_refused",
            Self::SourceUnreachable(_) => "source_unreachable",
            Self::NoShell(_) => "no_shell",
            Self::DiskFull { .. } => "disk_full",
            Self::MemoryExhausted { .. } => "memory_exhausted",
            Self::Host(_) => "host_failed",
        }
    }
}

impl From<Failure> for BuildError {
    fn from(failure: Failure) -> Self {
        let step = match &failure {
            Failure::Step { step, .. } | Failure::DiskFull { step, .. } | Failure::MemoryExhausted { step } => *step,
            _ => None,
        };
        Self { code: failure.code().to_owned(), message: failure.to_string(), step }
    }
}

/// What is known of a run of buildah that failed.
#[derive(Debug, Default)]
pub(crate) struct Signs<'a> {
    /// Its last words.
    pub(crate) said: &'a str,
    /// The step that it was at.
    pub(crate) step: Option<u32>,
    /// Whether the cache's disk is full, or was when one of the step's programs said so.
    pub(crate) is_full: bool,
    /// Whether the kernel has ended a process for want of memory meanwhile.
    pub(crate) out_of_memory: bool,
    /// The limit of processes, if one was refused for it meanwhile.
    pub(crate) out_of_tasks: Option<u32>,
}

/// What buildah puts before everything else that it says of a step.
const AT_STEP: &str = "building at STEP ";

/// What of its words says that a registry was being asked.
const ASKING: [&str; 6] = [
    "initializing source docker://",
    "pinging container registry",
    "reading manifest",
    "copying system image",
    "fetching blob",
    "reading blob",
];

/// What a registry says of images that there are not, or not for this caller.
const REFUSALS: [&str; 6] =
    ["unauthorized", "denied", "authentication required", "manifest unknown", "name unknown", "not found"];

/// What says that no registry has said anything.
const SILENCE: [&str; 3] = ["dial tcp", "no such host", "timeout"];

/// Why buildah failed.
pub(crate) fn explain(signs: &Signs<'_>) -> Failure {
    let Signs { said, step, is_full: has_no_room, out_of_memory, out_of_tasks } = *signs;
    // Not the step's own text, which may say anything.
    let why = said.strip_prefix(AT_STEP).and_then(|at| at.rsplit_once("\": ")).map_or(said, |(_, why)| why);
    let has = |texts: &[&str]| texts.iter().any(|text| why.contains(text));
    if out_of_memory {
        return Failure::MemoryExhausted { step };
    }
    // buildah writes to the cache only.
    if has_no_room || is_full(why) {
        return Failure::DiskFull { step, is_cache: true };
    }
    if let (Some(limit), Some(_)) = (out_of_tasks, step) {
        let message = said.strip_prefix(AT_STEP).map_or_else(|| format!("The step failed: {said}"), of_step);
        let message = format!("{message}. It met the limit of {limit} processes and threads: start fewer at a time");
        return Failure::Step { step, message };
    }
    if said.contains("rejected by policy") {
        return Failure::SourceRefused(format!("This host takes no images from that registry: {said}"));
    }
    if has(&ASKING) {
        return match has(&REFUSALS) && !has(&SILENCE) {
            true => Failure::SourceRefused(format!("The registry does not give the image: {said}")),
            false => Failure::SourceUnreachable(format!("The registry cannot be reached: {said}")),
        };
    }
    if let Some(at) = said.strip_prefix(AT_STEP) {
        return Failure::Step { step, message: of_step(at) };
    }
    match step {
        Some(_) => Failure::Step { step, message: format!("The step failed: {said}") },
        None => Failure::SourceRefused(format!("The source cannot be built: {said}")),
    }
}

/// Whether these are words for a full disk.
pub(crate) fn is_full(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    said.contains("no space left on device") || said.contains("disk quota exceeded")
}

/// `"RUN x": while running runtime: exit status 1`, as a sentence.
fn of_step(at: &str) -> String {
    let (step, why) = at.rsplit_once("\": ").unwrap_or((at, "it failed"));
    let why = why.strip_prefix("while running runtime: ").unwrap_or(why);
    format!("The step `{}` failed: {why}", step.trim_start_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(said: &str) -> BuildError {
        explain(&Signs { said, step: Some(2), ..Signs::default() }).into()
    }

    #[test]
    fn buildahs_words_tell_whose_fault_it_is() {
        for (said, code) in [
            (r#"building at STEP "RUN exit 3": while running runtime: exit status 3"#, "step_failed"),
            (r#"building at STEP "COPY a /": copier: write: no space left on device"#, "disk_full"),
            (
                "Source image rejected: Running image docker://a.example/b:latest is rejected by policy.",
                "source_refused",
            ),
            (
                "initializing source docker://a.example/b: reading manifest latest in a.example/b: manifest unknown",
                "source_refused",
            ),
            (
                "initializing source docker://a.example/b: pinging container registry a.example: no such host",
                "source_unreachable",
            ),
            (
                "initializing source docker://a.example/b: pinging container registry a.example: dial tcp 10.0.0.1:443: permission denied",
                "source_unreachable",
            ),
            ("unable to apply COPY", "step_failed"),
            (
                r#"building at STEP "RUN echo reading blob; exit 3": while running runtime: exit status 3"#,
                "step_failed",
            ),
            (
                "initializing source docker://a.example/b: reading manifest 1 in a.example/b: errors: denied: not for you",
                "source_refused",
            ),
        ] {
            assert_eq!(explained(said).code, code, "{said}");
        }
    }

    #[test]
    fn a_step_that_failed_is_named_with_its_status() {
        let error = explained(r#"building at STEP "RUN echo ": " && exit 3": while running runtime: exit status 3"#);
        assert_eq!(error.message, r#"The step `RUN echo ": " && exit 3` failed: exit status 3"#);
        assert_eq!(error.step, Some(2));
    }

    #[test]
    fn a_lack_of_memory_outweighs_what_was_said() {
        let signs =
            Signs { said: "exit status 137", step: Some(1), is_full: true, out_of_memory: true, out_of_tasks: Some(1) };
        assert!(matches!(explain(&signs), Failure::MemoryExhausted { step: Some(1) }));
    }

    #[test]
    fn a_step_that_met_the_limit_of_processes_is_told_so() {
        let said = r#"building at STEP "RUN :": while running runtime: exit status 2"#;
        let error =
            BuildError::from(explain(&Signs { said, step: Some(1), out_of_tasks: Some(4096), ..Signs::default() }));
        assert_eq!(error.code, "step_failed");
        assert!(
            error.message.starts_with("The step `RUN :` failed: exit status 2. It met the limit of 4096 "),
            "{error:?}"
        );
    }

    #[test]
    fn only_a_full_cache_is_said_to_be_emptied() {
        let full = Failure::host("It cannot be written", &"No space left on device");
        assert!(!full.to_string().contains("cache"), "{full}");
        assert!(full.in_cache().to_string().contains("cache"));
    }

    #[test]
    fn what_fails_before_the_first_step_is_the_sources_fault() {
        let signs = Signs { said: "dockerfile parse error", ..Signs::default() };
        assert!(matches!(explain(&signs), Failure::SourceRefused(_)));
    }
}
