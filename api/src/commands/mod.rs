//! The command line.

use std::env::{self, VarError};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;
use nix::sys::stat::{Mode, umask};
use sandpiper_accounts::{Email, Role};
use sandpiper_db::{AuditLog, Database, DatabaseLocation};
use sandpiper_discovery::import::Kind;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::Store as Payments;

use crate::config::Config;
use crate::plan::Plan;
use crate::roles::{self, Roles};
use crate::store::Store;
use crate::store::keys::Capability;
use crate::{document, privileges, usage_export};

pub mod audit;
pub mod backup;
pub mod check;
pub mod import;
pub mod key;
pub mod merchant;
pub mod operator_key;
pub mod rotate_secrets;
pub mod serve;
pub mod team;
pub mod usage;

/// Takes the place of the configuration's `database`, so that a password need not stand in a file.
const DATABASE_VARIABLE: &str = "SANDPIPER_DATABASE_URL";

/// The control plane of Sandpiper: sandboxes, payments, API keys, limits, over HTTP.
#[derive(Debug, Parser)]
#[command(
    name = "sandpiper-api",
    version,
    after_help = "Examples:\n  \
        sandpiper-api serve --config /etc/sandpiper/api.toml\n  \
        sandpiper-api serve --config /etc/sandpiper/payments.toml --roles payments\n  \
        sandpiper-api key create --config /etc/sandpiper/api.toml --team acme --plan pro --capability write\n  \
        sandpiper-api key ls --config /etc/sandpiper/api.toml\n  \
        sandpiper-api team invite --config /etc/sandpiper/api.toml acme --role owner\n  \
        sandpiper-api team set-plan --config /etc/sandpiper/api.toml acme enterprise\n  \
        sandpiper-api team disable --config /etc/sandpiper/api.toml acme --reason \"The invoice of May is not paid\"\n  \
        sandpiper-api merchant invite --config /etc/sandpiper/api.toml \"Example Ltd\" --role owner\n  \
        sandpiper-api usage export --config /etc/sandpiper/api.toml --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z\n  \
        sandpiper-api operator-key create --config /etc/sandpiper/api.toml --name payments-team\n  \
        sandpiper-api import --config /etc/sandpiper/api.toml markets.json\n  \
        sandpiper-api backup --config /etc/sandpiper/api.toml --to /srv/backups/2026-11-25\n  \
        sandpiper-api openapi > openapi.json\n\n\
        Listener:\n  \
        `listen`, and in the configuration also `tls` (certificate files, ACME or a local authority), `host`, `cors_origins`,\n  \
        and `metrics_listen`, where GET /metrics is\n\n\
        Database:\n  \
        A file of SQLite, or a PostgreSQL server: `database` in the configuration, or the environment variable\n  \
        SANDPIPER_DATABASE_URL, which goes first, is a path or postgres://user:password@host:port/name?sslmode=verify-full"
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
        /// What to serve; each alone needs only its own settings and key file
        #[arg(long, value_delimiter = ',', default_value = "sandboxes,payments")]
        roles: Vec<roles::Role>,
    },
    /// Make, list and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// List teams, change their plans, disable and enable them, invite users
    #[command(subcommand)]
    Team(TeamCommand),
    /// Invite users of merchants
    #[command(subcommand)]
    Merchant(MerchantCommand),
    /// Export what teams used, for billing
    #[command(subcommand)]
    Usage(UsageCommand),
    /// Make, list and revoke operator keys, for /operator
    #[command(subcommand)]
    OperatorKey(OperatorKeyCommand),
    /// Import markets, banks and mobile money operators: all of a file, or nothing
    Import {
        #[command(flatten)]
        config: ConfigArgument,
        /// A .json document, or a .csv table
        file: PathBuf,
        /// What a table holds
        #[arg(long, value_parser = kind())]
        kind: Option<Kind>,
        /// Only check the file
        #[arg(long)]
        dry_run: bool,
    },
    /// Show who changed what, newest first
    Audit {
        #[command(flatten)]
        config: ConfigArgument,
        /// Only what was done to this: an id, or `payments/ID` and the like for the operator's requests
        #[arg(long)]
        resource: Option<String>,
        /// At most this many entries
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// One JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Copy the database and its keys to a new folder, while processes serve them
    ///
    /// Whoever has the folder can open all secrets in it: keep it as safe as the host itself. Of a database of PostgreSQL the
    /// keys alone are copied; pg_dump copies the rest.
    Backup {
        #[command(flatten)]
        config: ConfigArgument,
        /// A folder that does not exist yet
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// Print what it holds as one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Put a backup where the configuration says, while nothing serves; overwrites nothing
    Restore {
        #[command(flatten)]
        config: ConfigArgument,
        /// What `backup` made
        #[arg(long, value_name = "FOLDER")]
        from: PathBuf,
    },
    /// Check the configuration, the key files and the database, and change nothing; exit status 1 where something is wrong
    Check {
        #[command(flatten)]
        config: ConfigArgument,
        /// One JSON document instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Print the OpenAPI document
    Openapi {
        /// That of /merchant and /operator instead of that of /v1
        #[arg(long)]
        payments: bool,
    },
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
    /// Seal all secrets in the database under a new key, and drop the older ones, while nothing serves
    ///
    /// Tokens and links that were sealed for the E2B SDKs are not good any more; they are asked for anew.
    RotateSecrets {
        #[command(flatten)]
        config: ConfigArgument,
    },
}

#[derive(Debug, Subcommand)]
enum TeamCommand {
    /// List teams
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        config: ConfigArgument,
        /// One JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Give a team another plan; it holds from the next request on
    SetPlan {
        #[command(flatten)]
        config: ConfigArgument,
        /// The team's slug
        #[arg(value_name = "SLUG")]
        team: String,
        plan: Plan,
    },
    /// Disable a team: nothing of it runs or is reached from then on, and nothing of it is deleted
    Disable {
        #[command(flatten)]
        config: ConfigArgument,
        /// The team's slug
        #[arg(value_name = "SLUG")]
        team: String,
        /// Why, for the team, which reads it in each refusal
        #[arg(long)]
        reason: String,
    },
    /// Enable a team that was disabled: all is as it was, and what was paused stays so until it is resumed
    Enable {
        #[command(flatten)]
        config: ConfigArgument,
        /// The team's slug
        #[arg(value_name = "SLUG")]
        team: String,
    },
    /// Invite somebody to a team, and print the token, this once; makes the team if there is none
    Invite {
        #[command(flatten)]
        config: ConfigArgument,
        /// The team's slug
        #[arg(value_name = "SLUG")]
        team: String,
        /// viewer, member, admin or owner
        #[arg(long, default_value_t = Role::Owner)]
        role: Role,
        /// The only address that may accept; whoever has the token by default
        #[arg(long)]
        email: Option<Email>,
        /// Plan of a team that is made now; an existing team keeps its own
        #[arg(long, default_value_t = Plan::Basic)]
        plan: Plan,
    },
}

#[derive(Debug, Subcommand)]
enum MerchantCommand {
    /// Invite somebody to the Merchant Portal, and print the token, this once
    Invite {
        #[command(flatten)]
        config: ConfigArgument,
        /// The merchant's id, or its name
        #[arg(value_name = "MERCHANT")]
        merchant: String,
        /// viewer, member, admin or owner
        #[arg(long, default_value_t = Role::Owner)]
        role: Role,
        /// live or sandbox; both by default
        #[arg(long, value_parser = realm)]
        realm: Option<Realm>,
        /// The only address that may accept; whoever has the token by default
        #[arg(long)]
        email: Option<Email>,
    },
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Print what teams used, line by line
    ///
    /// Exports of times that follow on each other have nothing twice and nothing missing between them, once all that ran in
    /// them has ended or been collected until then.
    Export {
        #[command(flatten)]
        config: ConfigArgument,
        /// The first moment: 2026-01-01T00:00:00Z
        #[arg(long, value_name = "TIME")]
        from: Timestamp,
        /// The moment after the last
        #[arg(long, value_name = "TIME")]
        to: Timestamp,
        /// What to print
        #[arg(long, default_value = "intervals")]
        kind: usage_export::Kind,
        /// How to print it
        #[arg(long, default_value = "jsonl")]
        format: usage_export::Format,
        /// Only of this team
        #[arg(long, value_name = "SLUG")]
        team: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum OperatorKeyCommand {
    /// Make a key and print it, this once
    Create {
        #[command(flatten)]
        config: ConfigArgument,
        /// What the key is for
        #[arg(long, default_value = "")]
        name: String,
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
        /// `opk…`, from the list
        id: String,
    },
}

impl Arguments {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<()> {
        // Database, log of writes, keys: nothing that is made here is for other users.
        umask(Mode::from_bits_truncate(0o077));
        match self.command {
            Command::Serve { config, roles } => serve::run(config.load_for(Roles::from(&roles[..]))?),
            Command::Key(KeyCommand::Create { config, team, capability, name, plan, json }) => {
                let wanted = key::Wanted { team, capability, name, plan };
                config.with_database(|database| async move { key::create(&Store::new(database), &wanted, json).await })
            }
            Command::Key(KeyCommand::Ls { config, json }) => {
                config.with_database(|database| async move { key::list(&Store::new(database), json).await })
            }
            Command::Key(KeyCommand::Revoke { config, id }) => {
                config.with_database(|database| async move { key::revoke(&Store::new(database), &id).await })
            }
            Command::Key(KeyCommand::RotateSecrets { config }) => {
                let settings = config.load()?;
                config.with_database(|database| async move { rotate_secrets::run(&settings, database).await })
            }
            Command::Team(TeamCommand::Ls { config, json }) => {
                config.with_database(|database| async move { team::list(&Store::new(database), json).await })
            }
            Command::Team(TeamCommand::SetPlan { config, team, plan }) => {
                config.with_database(|database| async move { team::set_plan(&Store::new(database), &team, plan).await })
            }
            Command::Team(TeamCommand::Disable { config, team, reason }) => config
                .with_database(|database| async move { team::disable(&Store::new(database), &team, &reason).await }),
            Command::Team(TeamCommand::Enable { config, team }) => {
                config.with_database(|database| async move { team::enable(&Store::new(database), &team).await })
            }
            Command::Team(TeamCommand::Invite { config, team, role, email, plan }) => {
                config.with_database(|database| async move {
                    team::invite(&Store::new(database), &team, role, email.as_ref(), plan).await
                })
            }
            Command::Merchant(MerchantCommand::Invite { config, merchant, role, realm, email }) => config
                .with_database(|database| async move {
                    merchant::invite(&Payments::new(database), &merchant, role, realm, email.as_ref()).await
                }),
            Command::Usage(UsageCommand::Export { config, from, to, kind, format, team }) => {
                let wanted = usage::Wanted { from, to, kind, format, team };
                config.with_database(|database| async move { usage::export(&Store::new(database), wanted).await })
            }
            Command::OperatorKey(OperatorKeyCommand::Create { config, name, json }) => {
                config.with_database(|database| async move { operator_key::create(database, &name, json).await })
            }
            Command::OperatorKey(OperatorKeyCommand::Ls { config, json }) => {
                config.with_database(|database| operator_key::list(database, json))
            }
            Command::OperatorKey(OperatorKeyCommand::Revoke { config, id }) => {
                config.with_database(|database| async move { operator_key::revoke(database, &id).await })
            }
            Command::Import { config, file, kind, dry_run } => {
                let file = import::File::open(file, kind)?;
                let settings = config.load()?.payments;
                config.with_database(|database| async move {
                    import::run(&Payments::new(database), &settings, &file, dry_run).await
                })
            }
            Command::Audit { config, resource, limit, json } => config.with_database(|database| async move {
                audit::show(&AuditLog::new(database), resource.as_deref(), limit, json).await
            }),
            Command::Backup { config, to, json } => backup::write(&config.load()?, &to, json),
            Command::Restore { config, from } => backup::restore(&config.load()?, &from),
            Command::Check { config, json } => check::run(&config, json),
            Command::Openapi { payments } => {
                print!("{}", if payments { sandpiper_payments::document::text()? } else { document::text()? });
                Ok(())
            }
        }
    }
}

impl ConfigArgument {
    fn load(&self) -> anyhow::Result<Config> {
        self.load_for(Roles::default())
    }

    /// As a process with these roles needs it.
    fn load_for(&self, roles: Roles) -> anyhow::Result<Config> {
        let mut config = Config::load(self.config.as_deref(), roles)?;
        match env::var(DATABASE_VARIABLE) {
            Ok(text) => config.database = Some(text.parse().context(DATABASE_VARIABLE)?),
            Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => bail!("{DATABASE_VARIABLE} is not UTF-8"),
        }
        Ok(config)
    }

    /// Runs `work` with the database, as the user that serves: files made as root would be closed to the server.
    fn with_database<F: Future<Output = anyhow::Result<()>>>(
        &self,
        work: impl FnOnce(Database) -> F,
    ) -> anyhow::Result<()> {
        let config = self.load()?;
        privileges::drop_privileges(&config)?;
        block_on(async {
            let database = open_database(&config.database()).await?;
            let result = work(database.clone()).await;
            database.close().await;
            result
        })
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

async fn open_database(location: &DatabaseLocation) -> anyhow::Result<Database> {
    Database::open(location).await.with_context(|| format!("Cannot open the database {location}"))
}

/// Reads the word for a kind of things; the help lists them.
fn kind() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::list)).try_map(|word| word.parse())
}

/// Reads the word for a realm.
fn realm(word: &str) -> Result<Realm, &'static str> {
    word.parse().map_err(|()| "must be live or sandbox")
}
