//! Whole builds, with Debian's buildah, on real disks. They need root, loop devices, and the packages `buildah`, `crun` and
//! `busybox-static`. Where a registry is asked, it is of the test's own, and needs `docker-registry` and Debian 12's `python3`;
//! images of other tools than buildah need `umoci` and `skopeo`.

mod dockerfiles;
mod images;
mod registry;
mod sources;
mod support;
mod trees;
