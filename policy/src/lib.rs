//! What a sandbox may reach: what a policy means, and what follows from it for one destination.
//!
//! A policy is written in words (`allow_out: ["api.example.test:443"]`) and enforced in four places: the firewall of the
//! sandbox's slot, its DNS forwarder, its transparent proxy, and the API that refuses what is not a policy. All of them
//! ask this crate, and so does `sandpiper network explain`. It does no input or output besides reading the operator's
//! profiles.
//!
//! # Entries
//!
//! | entry | stands for |
//! |---|---|
//! | `api.example.test` | this host name |
//! | `*.example.test` | every name below `example.test`, however deep, but not `example.test` itself |
//! | `198.51.100.7`, `2001:db8::7`, `[2001:db8::7]` | this address |
//! | `198.51.100.0/24`, `2001:db8::/32`, `[2001:db8::/32]` | every address of the range |
//! | any of these with `:443` | TCP and UDP to this port only; with a port, IPv6 needs its brackets |
//!
//! Without a port an entry stands for every protocol and port, ICMP included; with one, never for ICMP. An IPv4 address
//! in IPv6 form (`::ffff:198.51.100.7`) is the IPv4 address.
//!
//! # Tiers
//!
//! The first tier that has something to say decides:
//!
//! | | tier | says |
//! |---|---|---|
//! | 1 | the platform's protected ranges ([`Platform`]); `localhost` and the names below it | deny |
//! | 2 | `allow_out` | allow |
//! | 3 | `deny_out` | deny |
//! | 4 | the profiles: `egress_profiles`, and `package-registries` with `allow_package_registry_access` | allow |
//! | 5 | other resolvers: ports 53 and 853, where names are denied | deny |
//! | 6 | `allow_internet_access` | allow if true, else deny |
//!
//! Within a tier the narrowest entry is named as the one that decided: a name before the wildcards above it, a range
//! before those around it, and then the one with the port before the one without.
//!
//! # Names
//!
//! Nobody sees names on packets. A name is enforced at three moments: the DNS forwarder refuses to resolve one that is
//! allowed on no port; the addresses of one that an entry names are *pinned* in the firewall, in the tier and for the
//! port of the entry; and TCP to port 80 or 443 of a pinned address passes the proxy, which reads the name that is asked
//! for and dials only where that name points. Three rules follow:
//!
//! - **QUIC** hides the name from the proxy, so UDP to port 443 is never allowed for its name's sake ([`Rule::HiddenName`]).
//! - Where names are denied and everything else is allowed ([`Policy::denies_names`]), another **resolver** would give away
//!   what the forwarder refuses: only an allowed entry opens its ports ([`Rule::OtherResolver`]).
//! - A range that is **all of IPv4** (`0.0.0.0/0`, or several entries that make it up, on one port those for it and those
//!   without a port together) also stands for every name: who denies all addresses does not want names resolved, and who
//!   allows all of them does.
//!
//! [`Policy::decide`] about a name tells what these do together. The addresses of the name are not known to it: that it
//! points into a protected or denied range is found when it is resolved, by [`Policy::vet`].

#![warn(clippy::missing_errors_doc)]

mod decision;
mod destination;
mod document;
mod entry;
mod index;
mod name;
mod nets;
mod platform;
mod policy;
mod profiles;
mod resolvers;
mod special;
mod syntax;

pub use decision::{Decision, Rule, Verdict};
pub use destination::{Destination, DestinationError, Host, Protocol};
pub use document::{Format, Unique};
pub use entry::{Entry, EntryError, Target};
pub use name::{Name, NameError};
pub use nets::Nets;
pub use platform::Platform;
pub use policy::{MAX_ENTRIES, PACKAGE_REGISTRIES, Pin, Policy, PolicyError, Resolution, Tier, Tier as PinTier};
pub use profiles::{Profiles, ProfilesError};
pub use resolvers::resolvers;
pub use special::is_public;
pub use syntax::Problem;
