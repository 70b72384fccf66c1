//! Processes of the host are killed at random while it is used in all ways; then it is looked whether anything
//! acknowledged is lost, anything is there twice or billed otherwise than it ran, or anything is left over.

use std::any::Any;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use support::{AtExit, Host, Inventory, Receiver, Setup, small};

use crate::caller::Caller;
use crate::faults::{self, Victim};
use crate::ledger::Ledger;
use crate::merchant::Merchant;
use crate::observer::{Observer, now_ms};
use crate::postgres::Postgres;
use crate::subject::Subject;
use crate::{tenant, usage};

/// Machines that wait for them.
const PARKED: u32 = 3;
/// Who use sandboxes side by side.
const TENANTS: u64 = 3;
/// The database and what else the host does not keep itself; made anew by each drill.
const FOLDER: &str = "/var/lib/sandpiper/drill";

/// Where the API's data are.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// A drill of a new host, of which these are killed; what came of it.
pub(crate) async fn run(
    time: Duration,
    database: Database,
    victims: &[Victim],
    seed: u64,
) -> anyhow::Result<Arc<Ledger>> {
    let (ledger, begin_ms) = (Arc::new(Ledger::default()), now_ms());
    let folder = Path::new(FOLDER);
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let postgres = match database {
        Database::Postgres => Some(Postgres::start(&folder.join("postgres"))?),
        Database::Sqlite => None,
    };
    let receiver = Receiver::start().await?;
    let host = Host::set_up(&setup(postgres.as_ref(), &receiver.certificate)?);
    let observer = Observer::start();
    eprintln!("drill crash: agent and API write to {}", host.log().display());

    host.wait_until_warm(&small()).await.delete().await;
    let operator = Caller::new(&host.api_url, &host.operator_key, ledger.clone())?;
    let merchant = Merchant::new(operator.clone(), receiver).await?;
    // None that waits is counted, before and after.
    host.set_parking(0).await;
    let before = host.inventory().await;
    host.set_parking(PARKED).await;

    let caller = Caller::new(&host.api_url, host.api_key(), ledger.clone())?;
    let end = Instant::now() + time;
    let tenants: Vec<_> =
        (0..TENANTS).map(|number| tokio::spawn(tenant::work(caller.clone(), seed ^ number, end))).collect();
    let merchant = tokio::spawn(merchant.work(end));
    let postgres = faults::go_on(caller.clone(), postgres, victims, seed, end).await?;
    let mut left = Vec::new();
    for tenant in tenants {
        left.extend(tenant.await?);
    }

    eprintln!("drill crash: everything is up again; auditing");
    for subject in left {
        let id = subject.id.clone();
        if let Err(error) = last_look(subject).await {
            ledger.find(format!("{id}: {error:#}"));
        }
    }
    merchant.await?.audit().await;
    unknown(&caller).await?;
    usage::audit(&caller, &operator, begin_ms, observer).await?;
    faults::park_none(&ledger).await;
    holds_what_it_held(before, &ledger).await;
    drop(postgres);
    Ok(ledger)
}

fn setup(postgres: Option<&Postgres>, certificate: &str) -> anyhow::Result<Setup> {
    let authority = Path::new(FOLDER).join("authority.pem");
    fs::write(&authority, certificate)?;
    let limits = "per_second = 1000000\nburst = 1000000\n";
    let api_settings = format!(
        "[rate_limit]\n{limits}[operator_rate_limit]\n{limits}\
         [webhooks]\nallow_addresses = [\"127.0.0.0/8\"]\nca_file = {authority:?}\n"
    );
    Ok(Setup { database: postgres.map(Postgres::url), api_settings, parked: PARKED, at_exit: AtExit::Keep })
}

async fn last_look(mut subject: Subject) -> anyhow::Result<()> {
    subject.verify().await?;
    subject.write().await?;
    subject.delete().await
}

/// Finds sandboxes and checkpoints that nobody was told of. A start that was refused may be shown as such, until its
/// deadline.
async fn unknown(caller: &Caller) -> anyhow::Result<()> {
    for (path, field) in [("/v1/sandboxes?limit=100", "sandboxes"), ("/v1/checkpoints?limit=100", "checkpoints")] {
        let list = caller.ask("list", Method::GET, path, &Value::Null).await?;
        for entry in list[field].as_array().into_iter().flatten() {
            let (id, state) = (entry["id"].as_str().unwrap_or_default(), &entry["state"]);
            if state != "failed" {
                caller.ledger.find(format!("doubled: nobody was told of {id}, which is {state}"));
            }
            caller.delete("delete", &format!("/v1/{field}/{id}")).await?;
        }
    }
    Ok(())
}

/// Finds what the host has more, or less, than before.
async fn holds_what_it_held(before: Inventory, ledger: &Ledger) {
    let compared = tokio::spawn(async move { Host::shared().holds_what_it_held(&before).await }).await;
    if let Err(error) = compared {
        ledger.find(format!("left over: {}", said(&*error.into_panic())));
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no reason".to_owned())
}
