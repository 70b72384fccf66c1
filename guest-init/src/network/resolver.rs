//! Whom programs ask for names.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::identity::write_if_different;

/// Of the sandbox's own system.
const FILE: &str = "/etc/resolv.conf";

/// Has programs ask `server`. Whatever was there is replaced: the resolver of the machine that a template was built on, or
/// a link to the file of a service that does not run here.
pub(crate) fn write(server: Ipv4Addr) -> io::Result<()> {
    write_to(Path::new(FILE), server)
}

fn write_to(path: &Path, server: Ipv4Addr) -> io::Result<()> {
    // Answers that say why a name is blocked have room for it with EDNS only.
    write_if_different(path, |_| format!("nameserver {server}\noptions edns0\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
    const TEXT: &str = "nameserver 100.64.0.1\noptions edns0\n";

    #[test]
    fn a_file_a_link_to_one_and_a_link_to_nothing_become_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "nameserver 192.0.2.1\n").unwrap();
        let [file, link, dangling, missing] =
            ["file", "link", "dangling", "missing"].map(|name| folder.path().join(name));
        fs::copy(&other, &file).unwrap();
        symlink(&other, &link).unwrap();
        symlink("../run/systemd/resolve/stub-resolv.conf", &dangling).unwrap();

        for path in [&file, &link, &dangling, &missing] {
            write_to(path, SERVER).unwrap();

            assert!(fs::symlink_metadata(path).unwrap().is_file());
            assert_eq!(fs::read_to_string(path).unwrap(), TEXT);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "nameserver 192.0.2.1\n");
    }
}
