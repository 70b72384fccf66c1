//! The tools: their names, what they take, and which one a call means.

mod files;
mod machine;
mod run;

use std::time::Duration;

use rmcp::handler::server::common::schema_for_type;
use rmcp::model::{ErrorData, Tool as Description};
use rmcp::schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::conversation::ToolError;
use crate::server::{Call, START};

/// For a call that runs nothing.
const SHORT: Duration = Duration::from_secs(120);

/// A call, with its arguments.
pub(crate) enum Tool {
    RunCommand(run::RunCommand),
    RunCode(run::RunCode),
    ReadFile(files::ReadFile),
    WriteFile(files::WriteFile),
    ListFiles(files::ListFiles),
    SearchFiles(files::SearchFiles),
    ServePort(machine::ServePort),
    Network(machine::Network),
    Checkpoint(machine::Checkpoint),
    RestoreCheckpoint(machine::RestoreCheckpoint),
    Fork(machine::Fork),
    SwitchSandbox(machine::SwitchSandbox),
}

/// All tools, as an agent is told of them.
pub(crate) fn all() -> Vec<Description> {
    fn tool<T: JsonSchema + 'static>(name: &'static str, description: &'static str) -> Description {
        Description::new(name, description, schema_for_type::<T>())
    }
    vec![
        tool::<run::RunCommand>("run_command", "Run a shell command (bash) and get its output and exit code."),
        tool::<run::RunCode>("run_code", "Run a program given as source code, in Python or bash."),
        tool::<files::ReadFile>("read_file", "Read a text file, or some lines of it."),
        tool::<files::WriteFile>(
            "write_file",
            "Write a text file, in place of what is there. Folders above it are made.",
        ),
        tool::<files::ListFiles>("list_files", "List a folder."),
        tool::<files::SearchFiles>("search_files", "Search the contents of files for a regular expression."),
        tool::<machine::ServePort>(
            "serve_port",
            "Give a port, on which a server in the machine listens (127.0.0.1 is enough), a URL, and get it.",
        ),
        tool::<machine::Network>(
            "network",
            "Show what the machine may reach and what was denied lately; or, with arguments, say what it may reach.",
        ),
        tool::<machine::Checkpoint>("checkpoint", "Keep the machine as it is now, files and processes, to return to."),
        tool::<machine::RestoreCheckpoint>(
            "restore_checkpoint",
            "Return to a checkpoint of this conversation: go on in a new machine made from it.",
        ),
        tool::<machine::Fork>("fork", "Make a second machine that goes on from where this one is; stay in this one."),
        tool::<machine::SwitchSandbox>("switch_sandbox", "Go on in another machine of this conversation."),
    ]
}

/// What a call means.
///
/// # Errors
///
/// Fails if there is no such tool, or it does not take these arguments.
pub(crate) fn parse(name: &str, arguments: Value) -> Result<Tool, ErrorData> {
    fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, ErrorData> {
        serde_json::from_value(arguments).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
    }
    Ok(match name {
        "run_command" => Tool::RunCommand(read(arguments)?),
        "run_code" => Tool::RunCode(read(arguments)?),
        "read_file" => Tool::ReadFile(read(arguments)?),
        "write_file" => Tool::WriteFile(read(arguments)?),
        "list_files" => Tool::ListFiles(read(arguments)?),
        "search_files" => Tool::SearchFiles(read(arguments)?),
        "serve_port" => Tool::ServePort(read(arguments)?),
        "network" => Tool::Network(read(arguments)?),
        "checkpoint" => Tool::Checkpoint(read(arguments)?),
        "restore_checkpoint" => Tool::RestoreCheckpoint(read(arguments)?),
        "fork" => Tool::Fork(read(arguments)?),
        "switch_sandbox" => Tool::SwitchSandbox(read(arguments)?),
        _ => return Err(ErrorData::invalid_params(format!("There is no tool {name:?}"), None)),
    })
}

impl Tool {
    /// How long a call may take in all.
    pub(crate) fn time_limit(&self) -> Duration {
        match self {
            Self::RunCommand(run) => START + run.time_limit() + run::GRACE,
            Self::RunCode(run) => START + run.time_limit() + run::GRACE,
            Self::Checkpoint(_) | Self::RestoreCheckpoint(_) | Self::Fork(_) => START + START,
            _ => START + SHORT,
        }
    }

    /// The result as text.
    pub(crate) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        match self {
            Self::RunCommand(run) => run.run(call).await,
            Self::RunCode(run) => run.run(call).await,
            Self::ReadFile(read) => read.run(call).await,
            Self::WriteFile(write) => write.run(call).await,
            Self::ListFiles(list) => list.run(call).await,
            Self::SearchFiles(search) => search.run(call).await,
            Self::ServePort(serve) => serve.run(call).await,
            Self::Network(network) => network.run(call).await,
            Self::Checkpoint(checkpoint) => checkpoint.run(call).await,
            Self::RestoreCheckpoint(restore) => restore.run(call).await,
            Self::Fork(fork) => fork.run(call).await,
            Self::SwitchSandbox(switch) => switch.run(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_tool_that_is_listed_can_be_called_and_has_an_object_for_its_arguments() {
        for tool in all() {
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            if let Err(error) = parse(&tool.name, json!({})) {
                assert!(error.message.starts_with("missing field"), "{}: {}", tool.name, error.message);
            }
        }
        assert!(parse("rm_rf", json!({})).is_err());
    }
}
