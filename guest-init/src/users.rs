//! The user database: `/etc/passwd` and `/etc/group`, read anew each time, because the guest may change them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Someone whom processes run as and files belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Every group, the primary one included.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: PathBuf,
    pub(crate) shell: String,
}

impl User {
    /// Whether credentials must be changed to act as this user. PID 1 always changes them, even to root, whose groups it
    /// lacks; an ordinary process (a test's) may be one user only.
    pub(crate) fn needs_change(&self) -> bool {
        let own = nix::unistd::geteuid();
        own.is_root() || own.as_raw() != self.uid
    }
}

/// Why there is no user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("There is no user {0:?} in this sandbox")]
    Unknown(String),
    #[error("The sandbox's user database cannot be read")]
    Database(#[source] io::Error),
}

/// The user called `name`. Reads files.
pub(crate) fn lookup(name: &str) -> Result<User, LookupError> {
    let passwd = read("/etc/passwd")?;
    let group = read("/etc/group")?;
    find(&passwd, &group, name).ok_or_else(|| LookupError::Unknown(name.to_owned()))
}

fn read(path: &str) -> Result<String, LookupError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(LookupError::Database(error)),
    }
}

fn find(passwd: &str, group: &str, name: &str) -> Option<User> {
    let mut fields = entry(passwd, name)?.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/");
    let shell = fields.next().filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh");
    let mut groups = vec![gid];
    for line in group.lines() {
        let mut fields = line.split(':').skip(2);
        let Some(id) = fields.next().and_then(|id| id.parse().ok()) else { continue };
        let is_member = fields.next().is_some_and(|members| members.split(',').any(|member| member == name));
        if is_member && id != gid {
            groups.push(id);
        }
    }
    Some(User { name: name.to_owned(), uid, gid, groups, home: Path::new(home).to_owned(), shell: shell.to_owned() })
}

/// The line of a passwd, shadow or group file whose first field is `name`.
pub(crate) fn entry<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    file.lines().find(|line| line.split_once(':').is_some_and(|(first, _)| !first.is_empty() && first == name))
}

/// The names of the lines of a passwd or group file, by id; the first line of an id has it.
fn names_by_id(file: &str) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    for line in file.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse)) else { continue };
        names.entry(id).or_insert_with(|| name.to_owned());
    }
    names
}

/// The names of all users and groups.
#[derive(Debug)]
pub(crate) struct Names {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl Names {
    /// Reads files.
    ///
    /// # Errors
    ///
    /// Fails if the database is there and cannot be read.
    pub(crate) fn read() -> Result<Self, LookupError> {
        Ok(Self { users: names_by_id(&read("/etc/passwd")?), groups: names_by_id(&read("/etc/group")?) })
    }

    /// The user's name, or its number if it has none.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:\nbroken:x:nine\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:other,user\ndocker:x:999:users\nuser:x:1000:user\n";

    #[test]
    fn a_user_has_the_groups_that_list_it_once_each() {
        let user = find(PASSWD, GROUP, "user").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 1000, vec![1000, 27]));
        assert_eq!((user.home.to_str(), user.shell.as_str()), (Some("/home/user"), "/bin/sh"));
    }

    #[test]
    fn an_id_has_its_first_name_or_its_number() {
        let names = Names { users: names_by_id(PASSWD), groups: names_by_id(&format!("{GROUP}wheel:x:0:\n")) };
        assert_eq!((names.user(1000), names.user(9)), ("user".into(), "9".into()));
        assert_eq!((names.group(0), names.group(27)), ("root".into(), "sudo".into()));
    }

    #[test]
    fn broken_and_missing_entries_are_no_users() {
        assert_eq!(find(PASSWD, GROUP, "broken"), None);
        assert_eq!(find(PASSWD, GROUP, "us"), None);
        assert_eq!(find(PASSWD, GROUP, ""), None);
    }
}
