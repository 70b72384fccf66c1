//! Whether agent and API went on while a test ran.

use std::fs;

use nix::unistd::Pid;

use crate::host::{Host, STATE_DIR};
use crate::up::processes;

/// What `up` writes when one of its services has ended by itself.
const RESTARTED: &str = "; starting it again";
/// What a program of Rust writes when it panics.
const PANICKED: &str = "panicked at";

/// The processes of agent and API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Services {
    pub(crate) agent: Option<Pid>,
    pub(crate) api: Option<Pid>,
}

impl Services {
    pub(crate) fn find() -> Self {
        // A monitor that is being started looks like the agent until it is executed; the agent is the older one.
        let oldest = |program| processes(program, STATE_DIR).into_iter().min();
        Self { agent: oldest("sandpiper-agent"), api: oldest("sandpiper-api") }
    }
}

/// A look at the host before a test; [`Self::finish`] is the one after it.
pub struct Watch {
    host: &'static Host,
    /// Bytes of the log that are older than the test.
    written: usize,
    /// Restarts that tests had caused by then.
    restarts: usize,
}

impl Host {
    /// Looks at the host before a test.
    pub fn watch(&'static self) -> Watch {
        Watch { host: self, written: self.said().len(), restarts: self.expected().restarts }
    }

    /// What agent and API have written so far.
    fn said(&self) -> Vec<u8> {
        fs::read(self.log()).unwrap_or_else(|error| panic!("{}: {error}", self.log().display()))
    }
}

impl Watch {
    /// Looks at the host again.
    ///
    /// # Errors
    /// A sentence, when agent or API ended though no test made it, or something in them panicked.
    pub fn finish(self) -> Result<(), String> {
        let (said, services) = (self.host.said(), Services::find());
        let mut expected = self.host.expected();
        let said = String::from_utf8_lossy(said.get(self.written..).unwrap_or_default()).into_owned();
        let lines = |what: &str| -> Vec<&str> { said.lines().filter(|line| line.contains(what)).collect() };
        let (restarted, panicked) = (lines(RESTARTED), lines(PANICKED));
        let caused = expected.restarts - self.restarts;
        let mut wrong = Vec::new();
        if restarted.len() != caused {
            wrong.push(format!(
                "{caused} restarts were caused by tests, the host had {}: {restarted:?}",
                restarted.len()
            ));
        }
        if services != expected.services {
            wrong.push(format!("the host's processes were {:?} and are {services:?}", expected.services));
            // The next test is not to blame.
            expected.services = services;
        }
        if !panicked.is_empty() {
            wrong.push(format!("a program of the host panicked: {panicked:?}"));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}
