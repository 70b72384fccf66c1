//! The shell examples of the documentation: which there are, and a shell that runs those of a page.
//!
//! A fenced block is an example by its language:
//!
//! | block | what is run | what must be so |
//! |---|---|---|
//! | `sh` | all of it | no command fails |
//! | `console` | what follows `$ `, with the indented lines right below | it prints the lines that follow, where `…` stands for anything; no command fails |
//!
//! ` ```sh norun="why" ` is shown and not run. [`OF_A_DATA_PLANE`] and [`OF_A_HOST`] say where pages are run; a test here sees
//! to it that no other page has an example without a reason.

mod page;
mod shell;

pub use page::{Example, Malformed, examples};
pub use shell::{Failed, Shell};

use std::fs;
use std::path::Path;

/// The pages whose examples need a data plane, `$DATA_PLANE`, and its token, `$TOKEN`. The guest's own tests run them, and
/// the end-to-end tests on a real sandbox.
pub const OF_A_DATA_PLANE: [&str; 2] = ["docs/data-plane.md", "docs/filesystem.md"];

/// The pages whose examples need a host: the API's `$URL`, a team's `$KEY`, an `$OPERATOR_KEY` of payments, the API's
/// configuration `$API_CONFIG`, its programs in `$PATH`, and `docs` in the folder where they begin. The end-to-end tests run them.
pub const OF_A_HOST: [&str; 12] = [
    "README.md",
    "docs/accounts.md",
    "docs/events.md",
    "docs/logs-and-metrics.md",
    "docs/mcp.md",
    "docs/operators.md",
    "docs/payments.md",
    "docs/team-webhooks.md",
    "docs/templates.md",
    "docs/usage.md",
    "docs/volumes.md",
    "docs/webhooks.md",
];

/// The checkout's folder.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The examples of a page that are to be run, in its order. `page` counts from the checkout's folder.
///
/// # Panics
///
/// Where the page cannot be read, or has a block that is no example by the rules.
pub fn runnable(page: &str) -> Vec<Example> {
    let text = fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let examples = examples(&text).unwrap_or_else(|malformed| panic!("{page}: {malformed}"));
    examples.into_iter().filter(|example| example.norun.is_none()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Every Markdown file below `folder`, without what was built or fetched.
    fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str()) {
                    pages(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_example_of_the_documentation_is_run_or_says_why_not() {
        let mut found = Vec::new();
        pages(root(), &mut found);
        assert!(found.len() > 10, "{found:?}");

        let mut wrong = Vec::new();
        for path in found {
            let page = path.strip_prefix(root()).unwrap().to_str().unwrap();
            let is_run = OF_A_DATA_PLANE.contains(&page) || OF_A_HOST.contains(&page);
            match examples(&fs::read_to_string(&path).unwrap()) {
                Ok(examples) if !is_run => {
                    let bare = examples.iter().filter(|example| example.norun.is_none());
                    wrong.extend(bare.map(|example| format!("{page}:{}: nobody runs this page", example.line)));
                }
                Ok(_) => {}
                Err(malformed) => wrong.push(format!("{page}: {malformed}")),
            }
        }

        assert!(wrong.is_empty(), "add norun=\"why\" to the fence, or the page to OF_A_HOST: {wrong:#?}");
    }

    #[test]
    fn every_page_that_is_run_has_something_to_run() {
        for page in OF_A_DATA_PLANE.iter().chain(&OF_A_HOST) {
            assert!(!runnable(page).is_empty(), "{page}");
        }
    }
}
