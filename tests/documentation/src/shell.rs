//! A shell that runs the examples of a page, one after the other, in one session as a reader would.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::Example;

/// How often it is looked whether the session has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What in shown output stands for anything.
const ANYTHING: &str = "…";

/// Where and with what examples run.
#[derive(Debug)]
pub struct Shell {
    /// The folder in which the first command begins.
    pub folder: PathBuf,
    /// Added to this process's environment.
    pub variables: Vec<(String, String)>,
    /// For the whole session.
    pub timeout: Duration,
}

/// An example that did not do what its page says.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}\n--- command\n{command}\n--- errors\n{errors}")]
pub struct Failed {
    line: usize,
    what: String,
    command: String,
    errors: String,
}

impl Shell {
    /// Runs `examples` in one bash, up to the first that fails. What they leave running in the background is ended.
    ///
    /// # Errors
    ///
    /// Says of the first example that went wrong whether it failed, did not end in time, or printed something else than
    /// the page shows.
    ///
    /// # Panics
    ///
    /// Where there is no bash, or no temporary folder.
    pub fn run(&self, examples: &[Example]) -> Result<(), Failed> {
        let records = self.folder.join(".examples");
        fs::create_dir_all(&records).expect("a folder for what the commands print");
        fs::write(records.join("script"), script(examples, &records)).expect("the script is written");
        let mut session = Command::new("bash")
            .arg(records.join("script"))
            .current_dir(&self.folder)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("bash runs");
        let ended = self.wait(&records.join("status"));
        if ended.is_none() {
            let group = i32::try_from(session.id()).expect("a process id");
            killpg(Pid::from_raw(group), Signal::SIGKILL).expect("the session is ours to end");
        }
        // Another may have done it: see `wait`.
        let _ = session.wait();
        for (index, example) in examples.iter().enumerate() {
            let read = |kind: &str| fs::read_to_string(records.join(format!("{index}.{kind}")));
            let failed = |what: String| Failed {
                line: example.line,
                what,
                command: example.command.clone(),
                errors: read("err").unwrap_or_default(),
            };
            let printed = read("out").unwrap_or_else(|error| format!("(unreadable: {error})"));
            if !records.join(format!("{index}.done")).exists() {
                let end =
                    ended.as_ref().map_or("did not end in time".to_owned(), |status| format!("failed with {status}"));
                return Err(failed(format!("{end}, having printed\n{printed}")));
            }
            if let Some(expected) = &example.output
                && !fits(expected, printed.trim_end())
            {
                return Err(failed(format!("it printed\n{printed}\n--- where the page shows\n{expected}")));
            }
        }
        Ok(())
    }

    /// The status that the session ended with; `None` if it did not. It is read from a file: where the guest's PID 1 is tested,
    /// this process waits for any child, and nobody else learns how one ended.
    fn wait(&self, status: &Path) -> Option<String> {
        let give_up_at = Instant::now() + self.timeout;
        while Instant::now() < give_up_at {
            match fs::read_to_string(status) {
                Ok(text) if text.ends_with('\n') => return Some(text.trim().to_owned()),
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{}: {error}", status.display()),
                _ => sleep(LOOK),
            }
        }
        None
    }
}

/// All examples as one script, each of which leaves `N.out`, `N.err` and, unless it fails, `N.done`; at the end `status`.
fn script(examples: &[Example], records: &Path) -> String {
    let records = records.display();
    let mut script = format!(
        "set -eo pipefail\n\
         trap 'status=$?; trap \"\" TERM; kill 0; wait; echo $status >\"{records}/status\"' EXIT\n"
    );
    for (index, example) in examples.iter().enumerate() {
        let command = example.command.trim_end();
        script += &format!(
            "{{ {command}\n}} >\"{records}/{index}.out\" 2>\"{records}/{index}.err\"\n: >\"{records}/{index}.done\"\n"
        );
    }
    script
}

/// Whether `printed` is what `shown` says.
fn fits(shown: &str, printed: &str) -> bool {
    let Some((first, rest)) = shown.split_once(ANYTHING) else { return shown == printed };
    let Some(mut printed) = printed.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split(ANYTHING).collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = printed.split_once(part) else { return false };
        printed = after;
    }
    printed.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    fn run(page: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let variables = vec![("GREETING".to_owned(), "hello".to_owned())];
        let shell = Shell { folder: folder.path().to_owned(), variables, timeout: Duration::from_secs(60) };
        shell.run(&examples(page).unwrap()).map_err(|failed| failed.to_string())
    }

    #[test]
    fn a_session_keeps_functions_and_variables_and_the_folder() {
        let page = "```sh\ngreet() { echo \"$GREETING $1\"; }\nmkdir below\ncd below\n```\n\
                    ```console\n$ WHO=world\n$ greet \"$WHO\" # so\nhello world\n$ basename \"$PWD\"\nbelow\n```\n";
        assert_eq!(run(page), Ok(()));
    }

    #[test]
    fn other_output_than_the_page_shows_is_an_error() {
        let error = run("```console\n$ echo one\none\n$ echo two\nthree\n```\n").unwrap_err();
        assert!(error.starts_with("line 4: it printed\ntwo"), "{error}");
        assert!(run("```console\n$ echo one\n```\n").is_err(), "nothing is shown, something printed");
    }

    #[test]
    fn a_command_that_fails_ends_the_session_where_it_is() {
        let error = run("```sh\necho before\ncat /no/such/file\necho after\n```\n```sh\ntrue\n```\n").unwrap_err();
        assert!(error.starts_with("line 2: failed with 1, having printed\nbefore\n"), "{error}");
        assert!(error.contains("No such file"), "{error}");
        assert!(run("```sh\nfalse | cat\n```\n").is_err(), "a command before a pipe counts");
        assert!(run("```sh\nif\n```\n").is_err(), "what is no shell");
    }

    #[test]
    fn what_goes_on_in_the_background_is_ended() {
        let page = "```sh\nsleep 1000 &\necho $! >pid\n```\n";
        let folder = tempfile::tempdir().unwrap();
        let shell = Shell { folder: folder.path().to_owned(), variables: Vec::new(), timeout: Duration::from_secs(60) };

        shell.run(&examples(page).unwrap()).unwrap();

        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z"), "{state}");
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let shell =
            Shell { folder: folder.path().to_owned(), variables: Vec::new(), timeout: Duration::from_millis(300) };
        let error = shell.run(&examples("```sh\nsleep 1000\n```\n").unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("line 2: did not end in time"), "{error}");
    }

    #[test]
    fn the_sign_for_anything_stands_for_anything() {
        for (shown, printed) in
            [("", ""), ("a…", "a"), ("…", "x\ny"), ("a…c…e", "abcde"), ("a…b\n…z", "a1b\n2\nz"), ("…a…a", "aa")]
        {
            assert!(fits(shown, printed), "{shown:?} {printed:?}");
        }
        for (shown, printed) in
            [("", "a"), ("a", "ab"), ("a…", "b"), ("a…c", "ab"), ("a…b…c", "acb"), ("…aa…aa", "aaa")]
        {
            assert!(!fits(shown, printed), "{shown:?} {printed:?}");
        }
    }
}
