//! The package's units, where systemd is process 1.

use std::path::Path;
use std::process::Command;

use super::checks::Check;

/// What `systemctl show` says of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Unit {
    load: String,
    active: String,
    file: String,
    needs_reload: bool,
    restarts: u32,
}

/// Nothing where systemd does not run.
pub(super) fn checks() -> Vec<Check> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Vec::new();
    }
    ["sandpiper-agent.service", "sandpiper-api.service"].into_iter().map(check).collect()
}

fn check(name: &'static str) -> Check {
    let properties = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload,NRestarts";
    match Command::new("systemctl").args(["show", properties, name]).output() {
        Ok(shown) if shown.status.success() => judge(name, &parse(&String::from_utf8_lossy(&shown.stdout))),
        Ok(shown) => {
            Check::warn(name, String::from_utf8_lossy(&shown.stderr).trim(), format!("systemctl status {name}"))
        }
        Err(error) => {
            Check::warn(name, format!("systemctl cannot be run: {error}"), format!("systemctl status {name}"))
        }
    }
}

fn parse(shown: &str) -> Unit {
    let mut unit = Unit::default();
    for (key, value) in shown.lines().filter_map(|line| line.split_once('=')) {
        match key {
            "LoadState" => value.clone_into(&mut unit.load),
            "ActiveState" => value.clone_into(&mut unit.active),
            "UnitFileState" => value.clone_into(&mut unit.file),
            "NeedDaemonReload" => unit.needs_reload = value == "yes",
            "NRestarts" => unit.restarts = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    unit
}

fn judge(name: &'static str, unit: &Unit) -> Check {
    if unit.load != "loaded" {
        return Check::fail(
            name,
            format!("it is not loaded: {}", unit.load),
            "systemctl daemon-reload, or install the package again",
        );
    }
    if unit.active != "active" {
        let found = format!("{}, started anew {} times", unit.active, unit.restarts);
        return Check::fail(name, found, format!("journalctl -u {name} says why; then: systemctl restart {name}"));
    }
    if unit.needs_reload {
        return Check::warn(
            name,
            "active, and its file has changed since systemd read it",
            format!("systemctl daemon-reload && systemctl restart {name}"),
        );
    }
    if unit.file != "enabled" {
        let found = format!("active, and {}: it is not started with the machine", unit.file);
        return Check::warn(name, found, format!("systemctl enable {name}"));
    }
    Check::ok(name, "active, and enabled")
}

#[cfg(test)]
mod tests {
    use super::super::checks::Verdict;
    use super::*;

    const SHOWN: &str =
        "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=no\nNRestarts=0\n";

    fn verdict(from: &str, to: &str) -> Verdict {
        let shown = SHOWN.replace(from, to);
        assert!(from.is_empty() || shown != SHOWN);
        judge("sandpiper-agent.service", &parse(&shown)).verdict
    }

    #[test]
    fn a_unit_is_well_when_it_is_active_and_stays_so_after_a_reboot() {
        assert_eq!(verdict("", ""), Verdict::Ok);
        assert_eq!(verdict("=enabled", "=disabled"), Verdict::Warn);
        assert_eq!(verdict("Reload=no", "Reload=yes"), Verdict::Warn);
        for state in ["inactive", "failed", "activating"] {
            assert_eq!(verdict("=active", &format!("={state}")), Verdict::Fail, "{state}");
        }
        assert_eq!(verdict("=loaded", "=not-found"), Verdict::Fail);
        assert_eq!(judge("sandpiper-agent.service", &parse("")).verdict, Verdict::Fail, "nothing was said of it");
    }

    #[test]
    fn what_is_wrong_with_a_unit_is_told_with_its_log() {
        let failed = judge(
            "sandpiper-api.service",
            &parse(&SHOWN.replace("=active", "=activating").replace("Restarts=0", "Restarts=7")),
        );
        assert_eq!(failed.found, "activating, started anew 7 times");
        assert!(failed.fix.unwrap().starts_with("journalctl -u sandpiper-api.service"));
    }
}
