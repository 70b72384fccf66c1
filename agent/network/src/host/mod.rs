//! The host's side: its own table of nftables and its forwarding.
//!
//! Slots enforce what their sandboxes may do. The host's table is the second line, the same for all of them and unaware of
//! policies: no slot reaches another, the host, by whichever of its addresses, or a protected range; none sends from an
//! address that is not its own; nobody reaches a slot unasked. And it does what only the host can do: it hides the slots'
//! addresses behind the host's.
//!
//! Other tables of the host stay as they are, and have their say: a packet passes if no chain drops it. One that drops
//! what it does not know is reported, since that would leave sandboxes without a network.

pub(crate) mod conntrack;
pub(crate) mod firewalls;
mod forwarding;
mod rules;

use std::io;

use self::firewalls::dropping_chains;
use crate::config::Config;
use crate::firewall::Tables;
use crate::nft::{self, NftError};

/// Why the host's side cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("Cannot load the host's nftables table")]
    Table(#[source] NftError),
    #[error("Cannot ask the kernel for its nftables tables")]
    Tables(#[source] io::Error),
    #[error("Cannot enable forwarding")]
    Forwarding(#[source] io::Error),
}

/// The host's table, loaded.
pub(crate) struct Host {
    name: String,
    ruleset: String,
    tables: Tables,
}

impl Host {
    /// Loads the table, in the place of one that is there, and switches on forwarding. The slots up to `highest` have their
    /// place in it even if there can be fewer now. Blocks.
    pub(crate) fn load(config: &Config, highest: u32) -> Result<Self, HostError> {
        let tables = Tables::here().map_err(HostError::Tables)?;
        let host = Self { name: config.name.clone(), ruleset: rules::ruleset(config, highest), tables };
        // First the table: nothing is forwarded that it does not look at.
        nft::load(&host.ruleset).map_err(HostError::Table)?;
        forwarding::enable().map_err(HostError::Forwarding)?;
        host.report_others(config);
        Ok(host)
    }

    /// Restores what is no longer there: tools that load the host's own firewall often begin by taking everything away.
    /// Blocks.
    pub(crate) fn check(&self) -> Result<(), HostError> {
        if !self.tables.has(&self.name).map_err(HostError::Tables)? {
            tracing::warn!(table = self.name, "the host's nftables table was removed; loading it again");
            nft::load(&self.ruleset).map_err(HostError::Table)?;
        }
        forwarding::enable().map_err(HostError::Forwarding)
    }

    /// Takes the table away. Blocks.
    pub(crate) fn unload(&self) -> Result<(), HostError> {
        let name = &self.name;
        nft::load(&format!("add table inet {name}\ndelete table inet {name}\n")).map_err(HostError::Table)
    }

    /// Says which chains of others may drop what slots send.
    fn report_others(&self, config: &Config) {
        let chains = match nft::run(&["-j", "list", "chains"], "") {
            Ok(chains) => dropping_chains(&chains, &self.name),
            Err(error) => return tracing::warn!(%error, "cannot list the host's other firewalls"),
        };
        let links = format!("{}v*", config.name);
        for chain in chains {
            tracing::warn!(
                chain,
                "this chain drops forwarded packets by default; unless it accepts what comes in by {links}, and what is \
                 established or related and goes out by {links}, sandboxes have no network"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_table_is_filled_in() {
        let ruleset = rules::ruleset(&Config { max_slots: 3, ..Config::default() }, 5);
        assert!(ruleset.contains("\"spv5\" . 100.65.0.11") && !ruleset.contains("spv6"));
        let code = ruleset.lines().filter(|line| !line.trim_start().starts_with('#'));
        assert!(!code.collect::<String>().contains("{name}"));
    }
}
