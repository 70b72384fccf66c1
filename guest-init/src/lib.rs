//! PID 1 of every sandbox, and the server of its data plane.
//!
//! ```text
//!  kernel ──▶ pid1 ──▶ link ··········connects to the host first of all, everything else happens while it does
//!              │
//!              ├──▶ boot    mounts, loopback, limits: what the first process of a user needs, no more
//!              ├──▶ reap    the one place that waits for children
//!              ├──▶ power   signals that end the machine
//!              │
//!              └──▶ guest    does what the host's messages say:
//!   link: Init ──▶ freeze    thaws the disks, if they are frozen
//!              ├──▶ identity  clock, entropy, host name, network, generation, users     (again after every restore)
//!              ├──▶ volumes   mounts what is to be there before the first process
//!              ├──▶ freeze    releases the processes, if they are stopped
//!              ├──▶ serve     HTTP on vsock: health, files, processes          (once)
//!              ├──▶ forward   vsock to 127.0.0.1                               (once)
//!   link: Ready ◀─┘
//!                  gate      holds requests until the files of names in /etc say who the guest is now
//!   link: Output ◀─ capture  what processes write, where the host asks for it
//!   link: Unmount ─▶ volumes  and Mount: their disks are taken away for a snapshot, and come back
//!   link: Freeze ──▶ freeze   stops processes, freezes disks: a snapshot can be taken
//! ```
//!
//! One thread runs everything that is asynchronous; what may block on a file system runs on the runtime's helper
//! threads, and what freezes and thaws file systems on a thread of its own. The library exists for `main`, for the tests,
//! which run [`serve`] on a Unix socket as an ordinary process, and for what makes templates ([`ensure_users`]).

mod boot;
pub mod capture;
mod cgroups;
mod clock;
mod connection;
mod fd;
mod forward;
mod freeze;
mod gate;
mod guest;
mod identity;
mod link;
mod log;
mod mountinfo;
mod net;
mod network;
pub mod pid1;
mod poll;
pub mod power;
pub mod reap;
pub mod serve;
mod timeline;
mod users;
mod volumes;

pub use boot::ensure_users;
