//! What sandboxes' networks need of a host.
//!
//! A slot is a network namespace with a tap, a pair of links and a firewall: all of that is made once, in a namespace that
//! is gone a moment later ([`trial`]). What the host's own network says is only read: whether the addresses between host
//! and slots are free and which families are routed ([`routes`]), and whether somebody else's firewall is in the way
//! ([`firewalls`]).

mod firewalls;
mod routes;
mod settings;
mod trial;

use std::path::Path;

use self::settings::Settings;
use self::trial::{NftError, Trial};
use super::Rung;
use super::checks::Check;

const INSTALL_NFT: &str = "apt-get install nftables";

/// `settings` is the agent's file of them.
pub(super) fn checks(rung: &Rung, settings: Option<&Path>) -> Vec<Check> {
    let settings = Settings::of(settings);
    let mut checks = Vec::new();
    if nix::unistd::geteuid().is_root() {
        checks.extend(parts(rung, &trial::run()));
        checks.push(firewalls::check(&settings));
    } else {
        checks.push(Check::warn("namespaces", "not tried: it takes root", "run: sudo sandpiper doctor"));
    }
    checks.push(routes::transit(&settings));
    checks.push(routes::ipv6());
    checks
}

/// A check for each part that was tried.
fn parts(rung: &Rung, trial: &Result<Trial, String>) -> Vec<Check> {
    // Of the other rungs' sandboxes the nested host's kernel takes care, with the programs of this machine.
    let of_kernel = |name, found: String, fix: &str| match rung {
        Rung::Direct => Check::fail(name, found, fix),
        Rung::Emulated { .. } | Rung::Nested { .. } => Check::warn(name, found, fix),
    };
    let trial = match trial {
        Ok(trial) => trial,
        Err(problem) => {
            return vec![of_kernel(
                "namespaces",
                problem.clone(),
                "run sandpiper on the host itself, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN",
            )];
        }
    };
    let namespaces = match &trial.links {
        Ok(()) => Check::ok("namespaces", "network namespaces and pairs of links can be made"),
        Err(error) => of_kernel(
            "namespaces",
            format!("no pair of links can be made: {error}"),
            "modprobe veth; a kernel without it needs CONFIG_VETH",
        ),
    };
    let tap = match &trial.tap {
        Ok(()) => Check::ok("tap", "/dev/net/tun makes taps"),
        Err(error) => of_kernel(
            "tap",
            format!("/dev/net/tun makes no tap: {error}"),
            "modprobe tun; in a container, give it the device /dev/net/tun",
        ),
    };
    let nft = match &trial.nft {
        Ok(()) => Check::ok("nftables", "nft loads what sandboxes' firewalls are made of"),
        Err(NftError::Run(error)) => Check::fail("nftables", format!("nft cannot be run: {error}"), INSTALL_NFT),
        Err(NftError::Refused(message)) => of_kernel(
            "nftables",
            format!("nft refused: {message}"),
            "use a kernel that has nf_tables with its modules for inet, netdev, ct, nat, masq, reject, limit and connlimit",
        ),
    };
    vec![namespaces, tap, nft]
}

#[cfg(test)]
mod tests {
    use super::super::checks::Verdict;
    use super::*;

    fn verdicts(rung: &Rung, trial: &Result<Trial, String>) -> Vec<(&'static str, Verdict)> {
        parts(rung, trial).into_iter().map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn a_host_of_its_own_kernel_needs_every_part() {
        let trial = Trial { tap: Err("why".into()), links: Ok(()), nft: Err(NftError::Refused("why".into())) };
        let found = verdicts(&Rung::Direct, &Ok(trial));
        assert_eq!(found, [("namespaces", Verdict::Ok), ("tap", Verdict::Fail), ("nftables", Verdict::Fail)]);
        assert_eq!(verdicts(&Rung::Direct, &Err("why".into())), [("namespaces", Verdict::Fail)]);
    }

    #[test]
    fn the_nested_host_has_a_kernel_of_its_own_and_takes_the_programs_from_here() {
        let rung = Rung::Nested { why: "x".into() };
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let trial = Trial { tap: Err("why".into()), links: Err("why".into()), nft: Err(NftError::Run(missing)) };
        let found = verdicts(&rung, &Ok(trial));
        assert_eq!(found, [("namespaces", Verdict::Warn), ("tap", Verdict::Warn), ("nftables", Verdict::Fail)]);
        assert_eq!(verdicts(&rung, &Err("why".into())), [("namespaces", Verdict::Warn)]);
    }
}
