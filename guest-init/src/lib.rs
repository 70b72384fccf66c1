//! PID 1 of every sandbox, and the server of its data plane.
//!
//! ```text
//!  kernel ──▶ pid1 ──▶ link ··········connects to the host first of all, everything else happens while it does
//!              │
//!              ├──▶ boot    mounts, loopback, limits: what the first process of a user needs, no more
//!              ├──▶ reap    the one place that waits for children
//!              ├──▶ power   signals that end the machine
//!              │
//!   link: Init ──▶ identity  host name, clock, entropy, users     (again after every restore)
//!              ├──▶ serve    HTTP on vsock: health, files, processes
//!              ├──▶ forward  vsock to 127.0.0.1
//!   link: Ready ◀─┘
//! ```
//!
//! One thread runs everything that is asynchronous; what may block on a file system runs on the runtime's helper
//! threads. The library exists for `main` and for the tests, which run [`serve`] on a Unix socket as an ordinary process.

mod boot;
mod fd;
mod forward;
mod identity;
mod link;
mod log;
mod net;
pub mod pid1;
pub mod power;
pub mod reap;
pub mod serve;
mod users;
