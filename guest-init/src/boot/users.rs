//! The users that every sandbox has: `root`, and `user`, who may become root without a password.
//!
//! Our own templates come with them. A template from somebody else's image may lack them, so they are added to whatever
//! files are there; entries that exist are never changed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::users::entry;

const NAME: &str = "user";
/// Of `user`, and of its group, unless somebody else has it.
const ID: u32 = 1000;
const SUDO_RULE: &str = "user ALL=(ALL:ALL) NOPASSWD: ALL\n";

/// Adds the users that are missing from the system under `root` (`/`, except in tests).
///
/// # Errors
///
/// Fails if the user database cannot be read or written.
pub fn ensure(root: &Path) -> io::Result<()> {
    let files = Files { etc: root.join("etc"), root };
    let passwd = files.read("passwd")?;
    if entry(&passwd, "root").is_none() {
        files.add("passwd", "root:x:0:0:root:/root:/bin/sh", 0o644)?;
        files.add("shadow", "root:*:19000:0:99999:7:::", 0o640)?;
    }
    let group = files.read("group")?;
    if entry(&group, "root").is_none() {
        files.add("group", "root:x:0:", 0o644)?;
    }
    if entry(&passwd, NAME).is_none() {
        files.add_user(&passwd, &group)?;
    }
    files.allow_sudo()
}

struct Files<'a> {
    root: &'a Path,
    etc: PathBuf,
}

impl Files<'_> {
    fn add_user(&self, passwd: &str, group: &str) -> io::Result<()> {
        let gid = match entry(group, NAME).and_then(|line| line.split(':').nth(2)?.parse().ok()) {
            Some(gid) => gid,
            None => {
                let gid = free_id(group);
                self.add("group", &format!("{NAME}:x:{gid}:"), 0o644)?;
                gid
            }
        };
        let uid = free_id(passwd);
        let shell = if self.root.join("bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
        self.add("passwd", &format!("{NAME}:x:{uid}:{gid}::/home/{NAME}:{shell}"), 0o644)?;
        if entry(&self.read("shadow")?, NAME).is_none() {
            // No password opens this account, and it never expires.
            self.add("shadow", &format!("{NAME}:*:19000:0:99999:7:::"), 0o640)?;
        }
        let home = self.root.join("home").join(NAME);
        if !home.exists() {
            DirBuilder::new().recursive(true).mode(0o755).create(&home)?;
            chown(&home, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    fn allow_sudo(&self) -> io::Result<()> {
        let folder = self.etc.join("sudoers.d");
        let rule = folder.join(NAME);
        if rule.exists() || !self.etc.join("sudoers").exists() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o750).create(&folder)?;
        // sudo refuses rules that others may write.
        replace(&rule, SUDO_RULE, 0o440)
    }

    /// A file of `/etc`, empty if it does not exist.
    fn read(&self, name: &str) -> io::Result<String> {
        match fs::read(self.etc.join(name)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Appends a line to a file of `/etc`, which is made with `mode` if it does not exist.
    fn add(&self, name: &str, line: &str, mode: u32) -> io::Result<()> {
        let path = self.etc.join(name);
        DirBuilder::new().recursive(true).mode(0o755).create(&self.etc)?;
        let mut text = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        if text.last().is_some_and(|byte| *byte != b'\n') {
            text.push(b'\n');
        }
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        let mode = fs::metadata(&path).map_or(mode, |meta| meta.permissions().mode() & 0o7777);
        replace(&path, text, mode)
    }
}

/// The first id from [`ID`] on that no line of a passwd or group file has.
fn free_id(file: &str) -> u32 {
    let taken = |id: u32| file.lines().any(|line| line.split(':').nth(2).is_some_and(|field| field.parse() == Ok(id)));
    (ID..).find(|id| !taken(*id)).unwrap_or(ID)
}

/// Writes a file beside `path` and puts it in its place, so that a reader or a power cut meets the old or the new one.
pub(crate) fn replace(path: &Path, text: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".sandpiper-new");
    let new = path.with_file_name(name);
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(text.as_ref())?;
    file.set_permissions(Permissions::from_mode(mode))?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_bare_system_gets_both_users_and_a_second_call_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("sudoers"), "").unwrap();

        ensure(root.path()).unwrap();
        let passwd = fs::read_to_string(etc.join("passwd")).unwrap();
        ensure(root.path()).unwrap();

        assert_eq!(passwd, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
        assert_eq!(fs::read_to_string(etc.join("passwd")).unwrap(), passwd);
        assert_eq!(fs::read_to_string(etc.join("group")).unwrap(), "root:x:0:\nuser:x:1000:\n");
        assert_eq!(fs::read_to_string(etc.join("sudoers.d/user")).unwrap(), SUDO_RULE);
        assert_eq!(fs::metadata(etc.join("sudoers.d/user")).unwrap().mode() & 0o777, 0o440);
        assert_eq!(fs::metadata(root.path().join("home/user")).unwrap().uid(), 1000);
    }

    #[test]
    fn somebody_elses_id_and_mode_are_respected() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("passwd"), "root:x:0:0::/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash").unwrap();
        fs::write(etc.join("group"), "root:x:0:\nuser:x:77:\n").unwrap();
        fs::write(etc.join("shadow"), "root::1::::::\n").unwrap();
        fs::set_permissions(etc.join("shadow"), Permissions::from_mode(0o600)).unwrap();

        ensure(root.path()).unwrap();

        let passwd = fs::read_to_string(etc.join("passwd")).unwrap();
        assert!(passwd.ends_with("/bin/bash\nuser:x:1001:77::/home/user:/bin/sh\n"), "{passwd}");
        assert!(fs::read_to_string(etc.join("shadow")).unwrap().starts_with("root::1::::::\nuser:*:"));
        assert_eq!(fs::metadata(etc.join("shadow")).unwrap().mode() & 0o777, 0o600);
        assert!(!etc.join("sudoers.d").exists());
    }
}
