//! What the agent asks of `sandpiper-builder`, the program that builds in a machine of the template
//! [`BUILDER_TEMPLATE`](crate::template::BUILDER_TEMPLATE).
//!
//! It runs as root through the data plane. Its standard input is one line, an [`Order`]; its standard output is lines, an
//! [`Event`] each, of which [`Event::Finished`], [`Event::Failed`] or [`Event::NotBuilt`] is the last; then it ends with status 0. What else it
//! says goes to standard error, for the operator.
//!
//! Three file systems wait for it, mounted by the guest's init: the new root at [`OUTPUT`], empty; what earlier builds of the
//! team kept at [`CACHE`]; and the machine's own, with what was uploaded in [`UPLOADS`]. Credentials and secrets are in the
//! order alone, and from there on in memory. Before all that the program may be asked whether the same was built before, which takes
//! the cache alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::UploadId;
use crate::template::{BuildError, BuildSource, ImageSettings, LogLevel};

/// Where the program is in the builder's machine.
pub const PROGRAM: &str = "/usr/bin/sandpiper-builder";
/// Where the new root file system is made.
pub const OUTPUT: &str = "/srv/output";
/// Where what can be used again is kept: images, and results of steps.
pub const CACHE: &str = "/srv/cache";
/// Where uploads are, files named by their ids; on the file system of [`OUTPUT`]'s machine that has room for them.
pub const UPLOADS: &str = "/srv/output/.sandpiper-uploads";
/// Where the root file system of the version that steps begin with is mounted, read-only.
pub const BASE: &str = "/srv/base";

/// What is to be built.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub source: BuildSource,
    #[serde(default)]
    pub registries: Registries,
    /// Settings of the version at [`BASE`].
    #[serde(default)]
    pub base_settings: ImageSettings,
    /// Images whose file systems are there already, as [`Event::Finished`] named them: they need not be written again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
    /// SHA-256 of each upload, hexadecimal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<UploadId, String>,
    /// Asks only whether the same was built before, with one of the `known` images as its result: [`CACHE`] alone is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_question: bool,
    /// Bytes that the cache may hold when it is done; what was used longest ago goes first.
    pub cache_bytes: u64,
}

/// Registries, as the operator's configuration has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registries {
    /// Hosts, with an optional port, that may be asked; any where it is empty.
    pub allowed: Vec<String>,
    /// For a registry's host, the one that is asked instead, with an optional path.
    pub mirrors: BTreeMap<String, String>,
    /// Hosts that are asked over HTTP without TLS.
    pub insecure: Vec<String>,
    /// PEM certificates that are believed besides Debian's.
    pub authorities: Vec<String>,
    /// For a registry's host, what the operator has there.
    pub credentials: BTreeMap<String, crate::template::Credentials>,
}

/// How a build goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A step begins.
    Step {
        number: u32,
        of: u32,
        text: String,
        cached: bool,
    },
    /// A line that a step printed, or one about it.
    Log {
        level: LogLevel,
        text: String,
    },
    /// The new root is complete, and on stable storage; or nothing was written, as the image is one of [`Order::known`].
    Finished {
        /// The image's id: SHA-256 of its configuration, hexadecimal.
        image: String,
        #[serde(default)]
        is_known: bool,
        settings: ImageSettings,
        /// What the image starts, as a command for a shell: `ENTRYPOINT` and `CMD`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<String>,
        /// Digests of the images that it was made from, by reference.
        digests: BTreeMap<String, String>,
    },
    Failed(BuildError),
    /// To a question: the order has to be carried out.
    NotBuilt,
}
