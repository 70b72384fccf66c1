//! Disks as stacks of sparse layers.
