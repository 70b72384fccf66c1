//! The command line.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use nix::sys::stat::{Mode, umask};

use crate::config::Config;
use crate::plan::Plan;
use crate::store::Store;
use crate::store::keys::Capability;
use crate::{docs, privileges};

pub mod audit;
pub mod key;
pub mod serve;

/// The control plane of Sandpiper: sandboxes, API keys, limits, over HTTP.
#[derive(Debug, Parser)]
#[command(
    name = "sandpiper-api",
    version,
    after_help = "Examples:\n  \
        sandpiper-api serve --config /etc/sandpiper/api.toml\n  \
        sandpiper-api key create --config /etc/sandpiper/api.toml --team acme --plan pro --capability write\n  \
        sandpiper-api key ls --config /etc/sandpiper/api.toml\n  \
        sandpiper-api openapi > openapi.json"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT
    Serve {
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// Make, list and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show who changed what, newest first
    Audit {
        #[command(flatten)]
        config: ConfigArgument,
        /// Only what was done to this sandbox or checkpoint
        #[arg(long)]
        resource: Option<String>,
        /// At most this many entries
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// One JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Print the OpenAPI document
    Openapi,
}

#[derive(Debug, Args)]
struct ConfigArgument {
    /// Configuration file (TOML); without it, the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key and print it, this once; makes the team if there is none
    Create {
        #[command(flatten)]
        config: ConfigArgument,
        /// The team that the key acts for
        #[arg(long, value_name = "SLUG")]
        team: String,
        /// What the key may do: `write` includes `read`
        #[arg(long)]
        capability: Capability,
        /// What the key is for
        #[arg(long, default_value = "")]
        name: String,
        /// Plan of a team that is made now; an existing team keeps its own
        #[arg(long, default_value_t = Plan::Basic)]
        plan: Plan,
        /// One JSON document instead of the bare key
        #[arg(long)]
        json: bool,
    },
    /// List keys
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        config: ConfigArgument,
        /// One JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// End a key
    Revoke {
        #[command(flatten)]
        config: ConfigArgument,
        /// `key…`, from the list
        id: String,
    },
}

impl Arguments {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<()> {
        // Database, log of writes, keys: nothing that is made here is for other users.
        umask(Mode::from_bits_truncate(0o077));
        match self.command {
            Command::Serve { config } => serve::run(config.load()?),
            Command::Key(KeyCommand::Create { config, team, capability, name, plan, json }) => {
                let wanted = key::NewKey { team, capability, name, plan };
                config.with_store(|store| async move { key::create(&store, &wanted, json).await })
            }
            Command::Key(KeyCommand::Ls { config, json }) => {
                config.with_store(|store| async move { key::list(&store, json).await })
            }
            Command::Key(KeyCommand::Revoke { config, id }) => {
                config.with_store(|store| async move { key::revoke(&store, &id).await })
            }
            Command::Audit { config, resource, limit, json } => {
                config.with_store(|store| async move { audit::show(&store, resource.as_deref(), limit, json).await })
            }
            Command::Openapi => {
                print!("{}", docs::document_text()?);
                Ok(())
            }
        }
    }
}

impl ConfigArgument {
    fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref())?)
    }

    /// Runs `work` with the store, as the user that serves: files made as root would be closed to the server.
    fn with_store<F: Future<Output = anyhow::Result<()>>>(&self, work: impl FnOnce(Store) -> F) -> anyhow::Result<()> {
        let config = self.load()?;
        privileges::give_up(&config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = open_store(&config.database()).await?;
            let result = work(store.clone()).await;
            store.close().await;
            result
        })
    }
}

async fn open_store(path: &Path) -> anyhow::Result<Store> {
    Store::open(path).await.with_context(|| format!("Cannot open the database {}", path.display()))
}
