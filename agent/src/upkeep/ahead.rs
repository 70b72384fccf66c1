//! Makes snapshots ahead, while nobody starts anything, so that no create has to wait for a boot that could have been foreseen:
//!
//! - of each template of the host, in the size that it says, a warm snapshot with the root disk of each plan;
//! - a bare one of that size, for whatever has none of its own;
//! - anew what was used not long ago and was made with another kernel or monitor: after an upgrade the first sandbox is as quick as
//!   before, and has its start command up.
//!
//! One after the other, as many as the host keeps ([`crate::config::Warm::max`]) and has memory and disk for. The sizes that teams
//! choose themselves nobody can foresee: their first create orders them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sandpiper_images::snapshots::{Recipe, Snapshot, WarmSnapshot};
use sandpiper_images::templates::Template;
use sandpiper_protocol::agent::RuntimeBaseline;
use tokio::time::{Instant, sleep, timeout_at};

use super::warm::{self, MakeError};
use crate::bare;
use crate::helpers;
use crate::revision::Revision;
use crate::sandbox::Context;
use crate::service::WarmOrder;

/// For how long no sandbox may have begun, changed or ended before the next is made.
const QUIET: Duration = Duration::from_secs(10);
/// How often it is looked for what is missing, where nothing says that something may be.
const CHECK: Duration = Duration::from_secs(60);
/// What was used longer ago is not made anew.
const OF_USE: Duration = Duration::from_hours(7 * 24);

/// Makes what is missing, until the agent ends.
pub(super) async fn keep(context: Arc<Context>) {
    let mut root_disks = context.root_disks.subscribe();
    let mut rest = Rest { revision: &context.revision, known: context.revision.get(), since: Instant::now() };
    loop {
        tokio::select! {
            () = context.leave.cancelled() => return,
            // Its sender is the context's.
            _ = root_disks.changed() => {}
            () = sleep(CHECK) => {}
        }
        tokio::select! {
            () = context.leave.cancelled() => return,
            () = rest.begin() => {}
        }
        // Only now: what is of use, and of whom, may have changed since.
        let for_look = Arc::clone(&context);
        let orders = tokio::task::spawn_blocking(move || missing(&for_look)).await.unwrap_or_default();
        for order in orders {
            if !rest.goes_on() {
                break;
            }
            match warm::make_for_anybody(&context, &order).await {
                Ok(_) => {}
                // There is no hurry, and who is short of memory is told so elsewhere.
                Err(MakeError::Short | MakeError::Ending) => break,
                Err(error) => warm::tell_of(&order, &error),
            }
        }
    }
}

/// Whether sandboxes rest.
struct Rest<'a> {
    revision: &'a Revision,
    /// The last change that was seen, and since when there has been no other.
    known: i64,
    since: Instant,
}

impl Rest<'_> {
    /// Returns once they have rested for as long as they should.
    async fn begin(&mut self) {
        while timeout_at(self.since + QUIET, self.revision.wait_while(self.known)).await.is_ok() {
            (self.known, self.since) = (self.revision.get(), Instant::now());
        }
    }

    /// Whether nothing has happened since.
    fn goes_on(&self) -> bool {
        self.revision.get() == self.known
    }
}

/// What is to be made, the most useful first, and no more than there is room for. Blocks.
fn missing(context: &Context) -> Vec<WarmOrder> {
    let (mut current, mut outdated) = (HashSet::new(), Vec::new());
    for WarmSnapshot { key, snapshot, used, .. } in context.warm.list() {
        let Some(order) = recipe_of(context, &snapshot).and_then(|recipe| order(context, recipe)) else { continue };
        if order.key == key {
            current.insert(key);
        } else if used.elapsed().is_ok_and(|since| since < OF_USE) {
            outdated.push(order);
        }
    }
    let room = (context.config.warm.max as usize).saturating_sub(current.len());
    let foreseen = foreseen(context).into_iter().filter_map(|recipe| order(context, recipe));
    foreseen.chain(outdated).filter(|order| current.insert(order.key.clone())).take(room).collect()
}

/// What sandboxes will be started from without anybody having asked for it yet.
fn foreseen(context: &Context) -> Vec<Recipe> {
    let root_disks = context.root_disks.borrow().clone();
    let mut recipes = Vec::new();
    for template in newest_of_the_host(context) {
        let RuntimeBaseline { cpu, memory_mb } = template.version.baseline;
        let least_gib = template.least_disk_gib().unwrap_or(u32::MAX);
        for disk_gib in root_disks.iter().map(|disk_gib| template.version.disk_gib.max(*disk_gib)) {
            if least_gib <= disk_gib {
                recipes.push(Recipe { template: template.clone(), cpu, memory_mb, disk_gib });
            }
        }
        recipes.extend(bare::recipe(&context.templates, cpu, memory_mb).filter(|_| !root_disks.is_empty()));
    }
    recipes
}

/// The newest version of each template of the host that sandboxes are made of.
fn newest_of_the_host(context: &Context) -> Vec<Template> {
    let mut newest = BTreeMap::new();
    // Oldest first.
    for version in context.templates.list() {
        if version.team.is_none() && !helpers::is_own(&version) {
            newest.insert(version.slug, version.id);
        }
    }
    newest.values().filter_map(|id| context.templates.find(id)).collect()
}

/// What a snapshot was made from, if that is still there and may start something; of the agent's own, the newest.
fn recipe_of(context: &Context, snapshot: &Snapshot) -> Option<Recipe> {
    let template = context.templates.find(&snapshot.template_version)?;
    let version = &template.version;
    let may_start = match &version.team {
        Some(team) => !context.allowances.is_disabled(team),
        None if helpers::is_own(version) => {
            helpers::newest_own(&context.templates, &version.slug).is_some_and(|own| own.version.id == version.id)
        }
        None => true,
    };
    let (cpu, memory_mb, disk_gib) = (snapshot.cpu, snapshot.memory_mb, snapshot.disk_gib);
    may_start.then_some(Recipe { template, cpu, memory_mb, disk_gib })
}

/// What is to be ordered for this, where snapshots of its kind are made.
fn order(context: &Context, recipe: Recipe) -> Option<WarmOrder> {
    let config = context.config.warm;
    let is_made = if bare::is_made_from(&recipe.template.version) { config.bare } else { config.enabled };
    let key = context.warm.key(&recipe).ok().filter(|_| is_made)?;
    Some(WarmOrder { key, recipe })
}
