//! Everything that a host holds, so that it can be told whether it holds the same later on.
//!
//! Names that are never given twice (ids, numbers of slots and processes) are left out of the comparison, how many there
//! are is not. Nothing is tolerated: what the agent keeps ready for the next sandbox is complete before an inventory is
//! taken, or, where it depends on what was asked for lately, is known to be that and left out: monitors that wait, each
//! with a descriptor of its process and a connection in the agent, and warm snapshots.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Pid;
use sqlx::{AnyConnection, Connection};

use crate::host::{Host, NETWORK, RUNTIME_DIR, STATE_DIR};
use crate::sandbox::text;
use crate::up::processes;
use crate::wait::wait_until;
use crate::watch::Services;

/// Tables of what is kept after it happened, or for ever.
const KEPT: [&str; 33] = [
    "api_keys",
    "audit",
    "banks",
    "event_counters",
    "event_totals",
    "events",
    "idempotency_keys",
    "identities",
    "invitations",
    "login_sessions",
    "market_methods",
    "markets",
    "memberships",
    "merchant_invitations",
    "merchant_keys",
    "merchant_markets",
    "merchant_members",
    "merchants",
    "mobile_operators",
    "payments",
    "storage_hours",
    "storage_samples",
    "team_webhook_attempts",
    "team_webhook_deliveries",
    "team_webhooks",
    "teams",
    "template_versions",
    "usage_intervals",
    "usage_journals",
    "usage_traffic",
    "users",
    "webhook_attempts",
    "webhook_deliveries",
];
/// Folders of which everything is kept for a while: records of builds, and teams' caches.
const BUILT: [&str; 2] = ["builds", "caches"];
/// What is there for good from a first time on: what teams may hold, of whom none is ever forgotten, whose sessions were
/// revoked, and the journal of what ran.
const STARTED: [&str; 3] = ["allowances.json", "intervals", "session.revoked"];

/// How often a host has each thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory(BTreeMap<String, usize>);

impl Host {
    /// What the host holds once it has nothing to do.
    pub async fn inventory(&self) -> Inventory {
        self.leaks_nothing().await;
        // What is open only for a moment, for a command of the firewall for instance, is not there twice.
        wait_until("the host comes to rest", || async {
            let (first, second) = (self.take_inventory().await?, self.take_inventory().await?);
            let mut unrest = second.differences(&first);
            unrest.extend(second.files_being_read());
            if unrest.is_empty() { Ok(second) } else { Err(unrest.join("; ")) }
        })
        .await
    }

    /// Panics unless the host, before long, holds what it held at `before`, no more and no less.
    pub async fn holds_what_it_held(&self, before: &Inventory) {
        wait_until("the host holds what it held before", || async {
            // First, because a look for leaks asks the API, which then has a connection to close.
            let differences = self.take_inventory().await?.differences(before);
            let found = [self.leaks().await?, differences].concat();
            if found.is_empty() { Ok(()) } else { Err(found.join("; ")) }
        })
        .await;
    }

    async fn take_inventory(&self) -> Result<Inventory, String> {
        let mut inventory = Inventory::default();
        let idle = self.idle_monitors();
        inventory.add_processes(&idle.iter().map(|monitor| monitor.pid).collect());
        let services = Services::find();
        for (name, service) in [("agent", services.agent), ("API", services.api)] {
            let pid = service.ok_or_else(|| format!("no {name} runs"))?;
            inventory.add_descriptors(name, pid).map_err(|error| format!("descriptors of the {name}: {error}"))?;
        }
        if self.database.starts_with("postgres:") {
            // A pool of connections, as large as was needed at once so far.
            inventory.0.remove("open in the API: unix socket, unnamed");
        }
        for kind in ["anon_inode:[pidfd]", "unix socket, unnamed"] {
            inventory.remove(&format!("open in the agent: {kind}"), idle.len());
        }
        let ids: BTreeSet<&str> = idle.iter().map(|monitor| monitor.id.as_str()).collect();
        inventory.add_files(&ids);
        inventory.add_network();
        inventory.add_rows(&self.database).await.map_err(|error| format!("the API's database: {error}"))?;
        Ok(inventory)
    }
}

impl Inventory {
    /// What is more or less here than in `before`, a phrase each.
    fn differences(&self, before: &Self) -> Vec<String> {
        let things: BTreeSet<&String> = self.0.keys().chain(before.0.keys()).collect();
        let count = |inventory: &Self, thing| inventory.0.get(thing).copied().unwrap_or_default();
        let counts = things.into_iter().map(|thing| (thing, count(before, thing), count(self, thing)));
        counts
            .filter(|(_, was, is)| was != is)
            .map(|(thing, was, is)| format!("{thing}: {was} before, {is} now"))
            .collect()
    }

    /// Files of templates and snapshots that the agent compares with their digests just now: of a large one, that takes
    /// many seconds.
    fn files_being_read(&self) -> impl Iterator<Item = String> {
        let folders = ["templates", "warm"].map(|folder| format!("open in the agent: {STATE_DIR}/{folder}/"));
        let is_sealed = move |thing: &&String| folders.iter().any(|folder| thing.starts_with(folder));
        self.0.keys().filter(is_sealed).map(|thing| format!("{thing}, still"))
    }

    fn add(&mut self, thing: String) {
        *self.0.entry(thing).or_default() += 1;
    }

    /// Takes away what is known to be there for something that is left out.
    fn remove(&mut self, thing: &str, count: usize) {
        if let Some(left) = self.0.get_mut(thing) {
            *left = left.saturating_sub(count);
        }
        self.0.retain(|_, count| *count > 0);
    }

    /// The host's processes and those that descend from them, with their parents, users, namespaces.
    fn add_processes(&mut self, idle: &BTreeSet<Pid>) {
        let all: HashMap<i32, Process> = pids().filter_map(|pid| Some((pid, Process::read(pid)?))).collect();
        let programs = ["sandpiper", "sandpiper-agent", "sandpiper-api", "sandpiper-vmm"];
        let own: BTreeSet<i32> =
            programs.iter().flat_map(|program| processes(program, STATE_DIR)).map(Pid::as_raw).collect();
        let descends = |pid: i32| {
            std::iter::successors(Some(pid), |pid| all.get(pid).map(|process| process.parent))
                .any(|pid| own.contains(&pid))
        };
        let name_of = |pid: i32| all.get(&pid).map_or("nobody", |process| process.name.as_str());
        let (mut users, mut namespaces) = (BTreeSet::new(), BTreeSet::new());
        for (pid, process) in all.iter().filter(|(pid, _)| !idle.contains(&Pid::from_raw(**pid)) && descends(**pid)) {
            self.add(format!("process {} ({}) of {}", process.name, process.state, name_of(process.parent)));
            users.insert(process.user.clone());
            namespaces.extend(names(Path::new(&format!("/proc/{pid}/ns"))).into_iter().filter_map(|kind| {
                let path = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
                Some((kind, path))
            }));
        }
        users.into_iter().for_each(|user| self.add(format!("user id {user}")));
        namespaces.into_iter().for_each(|(kind, _)| self.add(format!("{kind} namespace of a process")));
    }

    /// What a process has open.
    fn add_descriptors(&mut self, owner: &str, pid: Pid) -> std::io::Result<()> {
        let sockets = sockets(pid);
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            // One that was closed meanwhile is none.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let target = target.to_string_lossy();
            let kind = match target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                Some(inode) => {
                    sockets.get(inode).map_or("socket of netlink, or of another namespace", String::as_str).to_owned()
                }
                None => nameless(&target),
            };
            let open = format!("open in the {owner}: {kind}");
            // The API has a pool of connections to its database, as large as was needed at once so far.
            let is_pooled = kind.contains("/sandpiper.db");
            if !is_pooled || !self.0.contains_key(&open) {
                self.add(open);
            }
        }
        Ok(())
    }

    /// Files, cgroups and mounts, those left out that belong to the idle monitors called `idle`.
    fn add_files(&mut self, idle: &BTreeSet<&str>) {
        let is_idle = |path: &Path| {
            path.components().any(|part| part.as_os_str().to_str().is_some_and(|name| idle.contains(name)))
        };
        // A warm snapshot that is complete is kept for the next sandbox of its shape.
        let is_warm = |path: &Path| {
            path.parent() == Some(&Path::new(STATE_DIR).join("warm")) && path.join("manifest.json").exists()
        };
        // So is the empty file system that volumes begin with.
        let is_blank = |path: &Path| {
            path.parent() == Some(&Path::new(STATE_DIR).join("volumes"))
                && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"blank-"))
        };
        // Builds that have ended are remembered with their logs, and what they may use again.
        let is_remembered =
            |path: &Path| BUILT.iter().any(|folder| path.parent() == Some(&Path::new(STATE_DIR).join(folder)));
        let is_started = |path: &Path| STARTED.iter().any(|name| *path == Path::new(STATE_DIR).join(name));
        let is_kept = |path: &Path| is_started(path) || is_blank(path) || is_remembered(path);
        let mut folders: Vec<PathBuf> = [STATE_DIR, RUNTIME_DIR].map(PathBuf::from).into();
        while let Some(folder) = folders.pop() {
            for path in names(&folder).into_iter().map(|name| folder.join(name)) {
                if is_idle(&path) || is_warm(&path) || is_kept(&path) {
                    continue;
                }
                self.add(format!("file {}", nameless(&path.to_string_lossy())));
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        for cgroup in crate::traces::cgroups().into_iter().filter(|path| !is_idle(path)) {
            self.add(format!("cgroup {}", nameless(&cgroup.to_string_lossy())));
        }
        for mount in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines() {
            self.add(format!("mount {}", nameless(mount)));
        }
    }

    /// Links, named namespaces and tables of the firewall.
    fn add_network(&mut self) {
        for link in names(Path::new("/sys/class/net")) {
            self.add(format!("link {}", nameless(&link)));
        }
        for namespace in names(Path::new("/run/netns")) {
            self.add(format!("network namespace {}", nameless(&namespace)));
        }
        let listed = Command::new("nft").args(["list", "ruleset"]).output().expect("nft runs");
        assert!(listed.status.success(), "nft list ruleset: {}", text(&listed.stderr));
        let rules = text(&listed.stdout);
        let own = rules.split("\ntable ").filter(|table| table.contains(NETWORK));
        for line in own.flat_map(|table| table.split(['\n', ','])) {
            self.add(format!("firewall: {}", nameless(line.trim())));
        }
    }

    /// Rows of the API's tables, but those that are [`KEPT`], and sandboxes, with what was said of them, checkpoints and
    /// volumes that are gone.
    async fn add_rows(&mut self, database: &str) -> sqlx::Result<()> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(database).await?;
        let tables = match connection.backend_name() {
            "PostgreSQL" => "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = 'public'",
            _ => "SELECT name FROM sqlite_schema WHERE type = 'table'",
        };
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await?;
        for table in tables.iter().filter(|table| !KEPT.contains(&table.as_str())) {
            let living = match table.as_str() {
                "sandboxes" => "WHERE state <> 'destroyed'",
                "checkpoints" => "WHERE state <> 'deleted'",
                "volumes" => "WHERE state <> 'deleted'",
                "templates" => "WHERE deleted_at_ms IS NULL",
                "sandbox_volumes" => "WHERE sandbox_id IN (SELECT id FROM sandboxes WHERE state <> 'destroyed')",
                _ => "",
            };
            let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table} {living}"));
            let rows: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await?;
            self.0.insert(format!("rows of {table}"), usize::try_from(rows).unwrap_or_default());
        }
        connection.close().await
    }
}

struct Process {
    name: String,
    state: char,
    parent: i32,
    user: String,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next().map(str::to_owned)
        };
        // What only waits and what runs just now is the same process.
        let state = if field("State")? == "Z" { 'Z' } else { '-' };
        Some(Self { name: field("Name")?, state, parent: field("PPid")?.parse().ok()?, user: field("Uid")? })
    }
}

fn pids() -> impl Iterator<Item = i32> {
    names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok())
}

/// What the sockets in a process's network namespace are, by inode. Without those of netlink, which the kernel lists once they were
/// used.
fn sockets(pid: Pid) -> HashMap<String, String> {
    let table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let mut sockets = HashMap::new();
    // proc(5): the inode is the seventh field of `unix`, the tenth of the others.
    for line in table("unix").lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let path = fields.get(7).map_or("unnamed".to_owned(), |path| nameless(path));
        if let Some(inode) = fields.get(6) {
            sockets.insert((*inode).to_owned(), format!("unix socket, {path}"));
        }
    }
    for protocol in ["tcp", "tcp6", "udp", "udp6"] {
        for line in table(protocol).lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // `TCP_LISTEN` of include/net/tcp_states.h.
            let kind = if fields.get(3) == Some(&"0A") { "listener" } else { "socket" };
            if let Some(inode) = fields.get(9) {
                sockets.insert((*inode).to_owned(), format!("{protocol} {kind}"));
            }
        }
    }
    sockets
}

/// The text without what is different each time: numbers, and ids, of which the prefix is left.
fn nameless(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mut rest = text;
    let mut shown = String::new();
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if is_word(first) && word.len() >= 20 {
            shown += &format!("{}…", &word[..3]);
        } else if is_word(first) {
            shown += &word.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>();
        } else {
            shown += word;
        }
    }
    while shown.contains("##") {
        shown = shown.replace("##", "#");
    }
    shown
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(things: &[&str]) -> Inventory {
        let mut inventory = Inventory::default();
        things.iter().for_each(|thing| inventory.add((*thing).to_owned()));
        inventory
    }

    #[test]
    fn what_came_went_or_is_there_more_often_is_a_difference() {
        let (before, now) = (inventory(&["gone", "kept", "more"]), inventory(&["kept", "more", "more", "new"]));
        let differences = now.differences(&before);
        assert_eq!(differences, ["gone: 1 before, 0 now", "more: 1 before, 2 now", "new: 0 before, 1 now"]);
        assert!(now.differences(&now).is_empty());
    }

    #[test]
    fn ids_and_numbers_are_no_difference_and_words_are() {
        let file = |id, layer| nameless(&format!("/state/sandboxes/{id}/{layer}-7.layer"));
        let first = file("sbx01k9abcdefghjkmnpqrstv", "disk");
        assert_eq!(first, "/state/sandboxes/sbx…/disk-#.layer");
        assert_eq!(first, file("sbx01k9zzzzzzzzzzzzzzzzzz", "disk"));
        assert_ne!(first, file("sbx01k9abcdefghjkmnpqrstv", "memory"));
        assert_eq!(nameless("spt-12"), nameless("spt-7"));
    }
}
