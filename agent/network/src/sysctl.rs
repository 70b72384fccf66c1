//! Settings of the kernel for the network namespace that the calling thread is in.

use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/proc/sys/net";

/// Sets one, `ipv4/ip_forward` for example. It is written even if it has the value: writing may have effects.
pub(crate) fn set(key: &str, value: &str) -> io::Result<()> {
    let path = path(key);
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("Cannot write {value} to {}: {error}", path.display())))
}

/// What one is set to; `None` where the kernel has no such setting.
pub(crate) fn get(key: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path(key)) {
        Ok(value) => Ok(Some(value.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a link can have addresses of IPv6: the kernel may be without it, or the operator may have switched it off.
pub(crate) fn speaks_ipv6(link: &str) -> io::Result<bool> {
    Ok(get(&format!("ipv6/conf/{link}/disable_ipv6"))?.as_deref() == Some("0"))
}

/// The links that have settings of a family, `all` and `default` among them; empty where the kernel is without it.
pub(crate) fn links(family: &str) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(path(family).join("conf")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn path(key: &str) -> PathBuf {
    Path::new(ROOT).join(key)
}
