//! Bare snapshots: machines that have booted and are on no disk, so that a sandbox for which there is no warm snapshot is restored
//! all the same, and enters its own disk.
//!
//! ```text
//!   the agent's own template ──booted, and left again by its guest──▶ bare snapshot, one for each shape
//!                                                                          │ restored
//!   the template's disk ───────────────in the place of the other───────────┴──▶ sandbox
//! ```
//!
//! No tenant's file is in one: its disk was the agent's own. They are made, tried, kept and thrown away as warm snapshots are
//! ([`crate::upkeep`]): they are those of the template [`HELPER_TEMPLATE`], of which no sandbox can be created.

use sandpiper_images::snapshots::Recipe;
use sandpiper_images::templates::Store;
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::volume::HELPER_TEMPLATE;

use crate::helpers;

/// Of the disk that is left again, which nothing is written to.
const DISK_GIB: u32 = 1;

/// What the bare snapshot of a shape is made from; `None` on a host without the agent's own template.
pub(crate) fn recipe(templates: &Store, cpu: u32, memory_mb: u32) -> Option<Recipe> {
    let template = helpers::newest_own(templates, HELPER_TEMPLATE)?;
    Some(Recipe { template, cpu, memory_mb, disk_gib: DISK_GIB })
}

/// Whether the snapshot of this version is a bare one.
pub(crate) fn is_made_from(version: &TemplateVersion) -> bool {
    helpers::is_own(version) && version.slug == HELPER_TEMPLATE
}
