//! What came from what: sandboxes from checkpoints, checkpoints from sandboxes.
//!
//! It is written down as the rows of nested lists, one after the other: teams may make it as deep as they have checkpoints, and
//! nothing here is called once for each level.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;

/// Lists within lists that are shown; what is deeper stands in the last one.
const MOST_NESTED: usize = 10;

/// A checkpoint of the team.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) id: String,
    pub(super) name: String,
    /// The one that it was taken of, which may be gone.
    pub(super) sandbox: String,
    pub(super) template: String,
    pub(super) memory: bool,
    pub(super) state: String,
    pub(super) size: u64,
    pub(super) error: Option<Failure>,
    pub(super) created_at: Timestamp,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Failure {
    pub(super) message: String,
}

/// A sandbox of the team, or one that is gone.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Sandbox {
    pub(super) id: String,
    /// None of one that is gone.
    pub(super) state: Option<String>,
    /// The checkpoint that it was started from.
    pub(super) snapshot_id: Option<String>,
}

impl Sandbox {
    pub(super) fn runs(&self) -> bool {
        self.state.as_deref() == Some("ready")
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.as_deref() == Some("stopped")
    }
}

#[derive(Debug)]
pub(super) enum Node {
    Sandbox(Sandbox),
    Checkpoint(Checkpoint),
}

/// One item of the lists.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) node: Node,
    /// Whether a list begins with it.
    pub(super) opens: bool,
    /// Whether nothing is in it: the item ends.
    pub(super) ends: bool,
    /// How many lists end with it, and the items that they are in.
    pub(super) closes: usize,
}

/// The lists of what checkpoints were taken of, and of what was started from them; of one `sandbox` and what it is related to,
/// where one is named.
pub(super) fn rows(checkpoints: Vec<Checkpoint>, sandboxes: Vec<Sandbox>, sandbox: Option<&str>) -> Vec<Row> {
    let origins: BTreeMap<String, String> =
        checkpoints.iter().map(|checkpoint| (checkpoint.id.clone(), checkpoint.sandbox.clone())).collect();
    let parents: BTreeMap<String, String> = sandboxes
        .iter()
        .filter_map(|one| Some((one.id.clone(), origins.get(one.snapshot_id.as_ref()?)?.clone())))
        .collect();
    let taken_of: BTreeSet<&String> = origins.values().collect();
    let mut started: BTreeMap<String, Vec<Sandbox>> = BTreeMap::new();
    let mut first = Vec::new();
    let wanted = sandbox.map(|id| oldest(id, &parents));
    for one in sandboxes {
        match one.snapshot_id.clone().filter(|id| origins.contains_key(id)) {
            Some(checkpoint) => started.entry(checkpoint).or_default().push(one),
            None if taken_of.contains(&one.id) => first.push(one),
            None => {}
        }
    }
    if let Some(wanted) = wanted {
        first.retain(|one| one.id == wanted);
    }
    let mut taken: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for checkpoint in checkpoints {
        taken.entry(checkpoint.sandbox.clone()).or_default().push(checkpoint);
    }
    for of_one in taken.values_mut() {
        of_one.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    }
    // Each is taken out of the maps, so that nothing comes twice.
    let mut left: Vec<(Node, usize)> = first.into_iter().rev().map(|one| (Node::Sandbox(one), 0)).collect();
    let mut nodes = Vec::new();
    while let Some((node, depth)) = left.pop() {
        let below = (depth + 1).min(MOST_NESTED);
        match &node {
            Node::Sandbox(one) => {
                left.extend(taken.remove(&one.id).into_iter().flatten().rev().map(|one| (Node::Checkpoint(one), below)))
            }
            Node::Checkpoint(one) => {
                left.extend(started.remove(&one.id).into_iter().flatten().rev().map(|one| (Node::Sandbox(one), below)));
            }
        }
        nodes.push((node, depth));
    }
    let depths: Vec<usize> = nodes.iter().map(|(_, depth)| *depth).collect();
    let row = |(index, (node, depth)): (usize, (Node, usize))| {
        let before = index.checked_sub(1).and_then(|index| depths.get(index));
        let next = depths.get(index + 1).copied().unwrap_or_default();
        let opens = before.is_some_and(|before| *before < depth);
        Row { node, opens, ends: next <= depth, closes: depth.saturating_sub(next) }
    };
    nodes.into_iter().enumerate().map(row).collect()
}

/// The sandbox that all of this one's ancestors came from.
fn oldest(id: &str, parents: &BTreeMap<String, String>) -> String {
    let mut id = id.to_owned();
    // As many steps as there are sandboxes, whatever they say.
    for _ in 0..parents.len() {
        let Some(parent) = parents.get(&id) else { break };
        id.clone_from(parent);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(id: &str, sandbox: &str, second: i64) -> Checkpoint {
        Checkpoint {
            id: id.to_owned(),
            name: id.to_owned(),
            sandbox: sandbox.to_owned(),
            template: "base".to_owned(),
            memory: true,
            state: "ready".to_owned(),
            size: 0,
            error: None,
            created_at: Timestamp::from_second(second).unwrap(),
        }
    }

    fn sandbox(id: &str, from: Option<&str>) -> Sandbox {
        Sandbox { id: id.to_owned(), state: None, snapshot_id: from.map(str::to_owned) }
    }

    /// As the lists that a page makes of it.
    fn drawn(rows: &[Row]) -> String {
        let mut text = String::new();
        for row in rows {
            let id = match &row.node {
                Node::Sandbox(one) => &one.id,
                Node::Checkpoint(one) => &one.id,
            };
            text += if row.opens { "<<" } else { "<" };
            text += id;
            text += if row.ends { ">" } else { "" };
            text += &">>".repeat(row.closes);
        }
        text
    }

    #[test]
    fn what_came_from_something_is_in_it() {
        let checkpoints = vec![checkpoint("c2", "s1", 2), checkpoint("c1", "s1", 1), checkpoint("c3", "s2", 3)];
        let sandboxes =
            vec![sandbox("s1", None), sandbox("s2", Some("c1")), sandbox("s3", Some("c1")), sandbox("other", None)];
        let all = rows(checkpoints.clone(), sandboxes.clone(), None);
        assert_eq!(drawn(&all), "<s1<<c1<<s2<<c3>>><s3>>><c2>>>");
        let more = [sandboxes, vec![sandbox("s4", Some("gone"))]].concat();
        let more_checkpoints = [checkpoints, vec![checkpoint("c4", "s4", 4)]].concat();
        assert_eq!(
            drawn(&rows(more_checkpoints.clone(), more.clone(), None)),
            "<s1<<c1<<s2<<c3>>><s3>>><c2>>><s4<<c4>>>"
        );
        assert_eq!(drawn(&rows(more_checkpoints.clone(), more.clone(), Some("s4"))), "<s4<<c4>>>");
        assert_eq!(drawn(&rows(more_checkpoints, more, Some("s2"))), drawn(&all));
    }

    #[test]
    fn however_deep_it_is_lists_end() {
        let checkpoints = (0..5000).map(|n| checkpoint(&format!("c{n}"), &format!("s{n}"), n)).collect();
        let from = |n: i64| (n > 0).then(|| format!("c{}", n - 1));
        let sandboxes = (0..5000).map(|n| sandbox(&format!("s{n}"), from(n).as_deref())).collect();
        let rows = rows(checkpoints, sandboxes, Some("s4999"));
        assert_eq!(rows.len(), 10_000);
        let opened = rows.iter().filter(|row| row.opens).count();
        assert_eq!(opened, rows.iter().map(|row| row.closes).sum::<usize>());
        assert_eq!(opened, MOST_NESTED);
    }
}
