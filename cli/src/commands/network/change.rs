//! `sandpiper network allow` and `sandpiper network deny`: read the policy, change its lists, replace it.

use anyhow::ensure;
use sandpiper::client::{Client, NetworkPolicy};
use sandpiper_policy::Entry;

use super::set::report;
use crate::output::Output;

/// Add to what a sandbox may reach, whatever else its policy says
#[derive(clap::Args)]
#[command(after_help = "\
An entry that was denied is not any more.

Examples:
  sandpiper network allow sbx… api.example.com:443 '*.example.org'
  sandpiper network allow sbx… --remove api.example.com:443")]
pub(crate) struct AllowArguments {
    #[command(flatten)]
    change: ChangeArguments,
}

/// Add to what a sandbox may not reach
#[derive(clap::Args)]
#[command(after_help = "\
An entry that was allowed is not any more.

Examples:
  sandpiper network deny sbx… ads.example.com 198.51.100.0/24
  sandpiper network deny sbx… --remove ads.example.com")]
pub(crate) struct DenyArguments {
    #[command(flatten)]
    change: ChangeArguments,
}

#[derive(clap::Args)]
struct ChangeArguments {
    /// The sandbox's id
    id: String,

    /// host, *.host, address or CIDR, with an optional :port
    #[arg(required = true, value_name = "ENTRY")]
    entries: Vec<Entry>,

    /// Take the entries off the list instead
    #[arg(long)]
    remove: bool,
}

pub(super) async fn allow(arguments: &AllowArguments, client: &Client, output: Output) -> anyhow::Result<()> {
    arguments.change.run(|policy| (&mut policy.allow_out, &mut policy.deny_out), client, output).await
}

pub(super) async fn deny(arguments: &DenyArguments, client: &Client, output: Output) -> anyhow::Result<()> {
    arguments.change.run(|policy| (&mut policy.deny_out, &mut policy.allow_out), client, output).await
}

impl ChangeArguments {
    /// `lists`: the one to change, and the opposite one.
    async fn run(
        &self,
        lists: fn(&mut NetworkPolicy) -> (&mut Vec<String>, &mut Vec<String>),
        client: &Client,
        output: Output,
    ) -> anyhow::Result<()> {
        let mut policy = client.network(&self.id).await?.policy;
        let (list, opposite) = lists(&mut policy);
        if self.remove {
            remove(list, &self.entries)?;
        } else {
            add(list, opposite, &self.entries);
        }
        report(&self.id, &client.replace_network(&self.id, &policy).await?, output);
        Ok(())
    }
}

fn add(list: &mut Vec<String>, opposite: &mut Vec<String>, entries: &[Entry]) {
    for entry in entries {
        opposite.retain(|other| !means(other, entry));
        if !list.iter().any(|known| means(known, entry)) {
            list.push(entry.to_string());
        }
    }
}

fn remove(list: &mut Vec<String>, entries: &[Entry]) -> anyhow::Result<()> {
    for entry in entries {
        let before = list.len();
        list.retain(|known| !means(known, entry));
        ensure!(list.len() < before, "{entry} is not on the list; `sandpiper network show` shows it");
    }
    Ok(())
}

/// Whether this text says the same as `entry`, however it is written.
fn means(text: &str, entry: &Entry) -> bool {
    text.parse::<Entry>().is_ok_and(|parsed| parsed == *entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<Entry> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_entry_moves_from_the_opposite_list_however_it_was_written() {
        let mut list = vec!["a.test".to_owned()];
        let mut opposite = vec!["B.Test".to_owned(), "b.test:443".to_owned()];

        add(&mut list, &mut opposite, &entries(&["b.test", "A.test"]));

        assert_eq!(list, ["a.test", "b.test"]);
        assert_eq!(opposite, ["b.test:443"]);
    }

    #[test]
    fn what_is_not_on_the_list_cannot_be_removed_from_it() {
        let mut list = vec!["192.0.2.0/24".to_owned(), "a.test".to_owned()];
        remove(&mut list, &entries(&["192.0.2.0/24"])).unwrap();
        assert_eq!(list, ["a.test"]);
        let error = remove(&mut list, &entries(&["a.test:80"])).unwrap_err().to_string();
        assert!(error.contains("a.test:80"), "{error}");
    }
}
