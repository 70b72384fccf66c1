//! Taking slots away, and finding those that an earlier process left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::host::conntrack;
use crate::plan::{self, Plan};
use crate::{links, meter, netns};

/// How long namespaces without a name may take to end by themselves. The kernel ends all of them at once, which costs it
/// far less than one link after the other; but as long as someone has a descriptor of one, it does not.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How often it is looked whether they are gone.
const LOOK: Duration = Duration::from_millis(10);

/// Slots of which there is anything, by their numbers. Blocks.
pub(super) fn find(config: &Config) -> io::Result<BTreeMap<u32, Plan>> {
    let mut names = netns::names(&plan::namespaces(config))?;
    names.extend(host_links(config)?);
    names.extend(meter::names(&config.meters)?);
    let plans = names.iter().filter_map(|name| Plan::by_name(config, name));
    Ok(plans.map(|plan| (plan.number, plan)).collect())
}

/// Takes slots away, however much there is of each. Returns the numbers of those that are gone; the others are to be tried
/// again. Blocks for about a second at most.
pub(super) fn remove(config: &Config, plans: Vec<Plan>) -> BTreeSet<u32> {
    for plan in &plans {
        if let Err(error) = netns::remove(&plan.name) {
            tracing::warn!(name = plan.name, %error, "cannot remove a slot's namespace; retrying");
        }
        if let Err(error) = meter::remove(&plan.meter) {
            tracing::warn!(path = %plan.meter.display(), %error, "cannot remove the file in which a slot's proxy counted; retrying");
        }
    }
    if let Err(error) = end_links(config, &plans) {
        tracing::warn!(%error, "cannot remove slots' links; retrying");
    }
    for plan in &plans {
        // What stays then is no way for anyone, so the slot's number need not wait for it.
        if let Err(error) = conntrack::end(plan.mark()) {
            tracing::warn!(name = plan.name, %error, "cannot flush a slot's connection-tracking entries; they will time out");
        }
    }
    match find(config) {
        Ok(left) => plans.iter().map(|plan| plan.number).filter(|number| !left.contains_key(number)).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot check whether slots are gone; retrying");
            BTreeSet::new()
        }
    }
}

/// Sees the links of slots go, with their namespaces or by themselves.
fn end_links(config: &Config, plans: &[Plan]) -> io::Result<()> {
    let left = || -> io::Result<Vec<&Plan>> {
        let links = host_links(config)?;
        Ok(plans.iter().filter(|plan| links.contains(&plan.link)).collect())
    };
    let begin = Instant::now();
    while !left()?.is_empty() && begin.elapsed() < TIMEOUT {
        thread::sleep(LOOK);
    }
    for plan in left()? {
        links::here(async |links| links.delete(&plan.link).await)?;
    }
    Ok(())
}

fn host_links(config: &Config) -> io::Result<Vec<String>> {
    links::here(async |links| links.veths(&plan::host_links(config)).await)
}
