//! `sandpiper-api import FILE`

use std::path::PathBuf;

use anyhow::{Context, bail};
use sandpiper_discovery::checks::Offered;
use sandpiper_discovery::import::{Format, Kind, Refused, read};
use sandpiper_discovery::settings::PaymentSettings;
use sandpiper_payments::store::Store;

/// A file, read before the process gives up its rights.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    content: Vec<u8>,
    format: Format,
}

impl File {
    /// Reads the file; its name says how it is written.
    pub fn open(path: PathBuf, kind: Option<Kind>) -> anyhow::Result<Self> {
        let format = match (path.extension().and_then(|extension| extension.to_str()), kind) {
            (Some("json"), None) => Format::Json,
            (Some("json"), Some(_)) => bail!("A JSON document names its lists itself; leave out --kind"),
            (Some("csv"), Some(kind)) => Format::Csv(kind),
            (Some("csv"), None) => bail!("Say what the table holds with --kind markets, banks or operators"),
            _ => bail!("The file's name must end in .json or .csv"),
        };
        let content = std::fs::read(&path).with_context(|| format!("Cannot read {}", path.display()))?;
        Ok(Self { path, content, format })
    }
}

/// Imports a file, or only checks it. What is wrong is printed as `FILE:LINE:COLUMN: …`.
pub async fn run(store: &Store, settings: &PaymentSettings, file: &File, dry_run: bool) -> anyhow::Result<()> {
    let offered = Offered::by(&store.discovery.markets().await?);
    let seed = match read(&file.content, file.format, settings, offered) {
        Ok(seed) => seed,
        Err(Refused { faults, total }) => {
            for fault in faults {
                eprintln!("{}:{fault}", file.path.display());
            }
            bail!("Nothing was imported; errors: {total}");
        }
    };
    if seed.entries() > settings.import_entries {
        let (entries, most) = (seed.entries(), settings.import_entries);
        bail!(
            "Nothing was imported: the file has {entries} entries, of which {most} can be imported at a time; split it"
        );
    }
    if !dry_run {
        store.discovery.import(&seed, super::audit::entry("import", None)).await?;
    }
    let done = if dry_run { "Would import" } else { "Imported" };
    let (markets, banks, operators) = (seed.markets.len(), seed.banks.len(), seed.mobile_operators.len());
    println!("{done} {markets} markets, {banks} banks, {operators} operators");
    Ok(())
}
