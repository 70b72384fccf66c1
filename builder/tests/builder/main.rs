//! Whole builds, with Debian's buildah, on real disks. They need root, loop devices, and the packages `buildah`, `crun` and
//! `busybox-static`; no registry is asked.

mod sources;
mod support;
mod trees;
