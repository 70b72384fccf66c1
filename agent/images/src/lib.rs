//! What lies on the host's disk: templates, the layers of disks and memory images, and the snapshots made of them.
//!
//! Nothing here knows of sandboxes that run, of monitors or of networks: an owner of files is a folder with a list of them.
//!
//! * [`templates`]: root file system images that sandboxes start from.
//! * [`layers`]: the files that disks and memory images consist of, whose they are, and how chains of them are shortened.
//! * [`snapshots`]: checkpoints and warm snapshots, which outlive the machine that they were taken of.
//! * [`volumes`]: disks that outlive the sandboxes that have them.
//! * [`checked`]: documents with a checksum.

#![warn(clippy::missing_errors_doc)]

pub mod checked;
pub mod layers;
pub mod snapshots;
pub mod templates;
pub mod volumes;
