//! The user database: `/etc/passwd` and `/etc/group`, read anew each time, because the guest may change them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

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
    /// Where processes start and relative paths count from: the home, unless the template's image says otherwise.
    pub(crate) folder: PathBuf,
}

impl User {
    /// Whether credentials must be changed to act as this user. PID 1 always changes them, even to root, whose groups it
    /// lacks; an ordinary process (a test's) may be one user only.
    pub(crate) fn needs_change(&self) -> bool {
        let own = nix::unistd::geteuid();
        own.is_root() || own.as_raw() != self.uid
    }

    /// The same, starting in `folder` if there is one.
    pub(crate) fn starting_in(self, folder: Option<&str>) -> Self {
        match folder {
            Some(folder) => Self { folder: folder.into(), ..self },
            None => self,
        }
    }
}

#[cfg(any(test, fuzzing))]
impl User {
    /// As most sandboxes have one.
    pub(crate) fn example() -> Self {
        let name = "user".to_owned();
        let home = PathBuf::from("/home/user");
        Self { name, uid: 1000, gid: 1000, groups: vec![1000], folder: home.clone(), home, shell: "/bin/sh".to_owned() }
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

/// The user called `name`, or with that number, and in the group behind a colon if there is one, as images name theirs. A
/// number needs no entry. Reads files.
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
    let Some((name, chosen)) = name.split_once(':') else { return find_user(passwd, group, name) };
    // Either part may be left out.
    let name = if name.is_empty() { "0" } else { name };
    if chosen.is_empty() {
        return find_user(passwd, group, name);
    }
    let gid = match entry(group, chosen) {
        Some(line) => line.split(':').nth(2)?.parse().ok()?,
        None => chosen.parse().ok()?,
    };
    // Whoever names the group is in no other, as with images elsewhere.
    Some(User { gid, groups: vec![gid], ..find_user(passwd, group, name)? })
}

fn find_user(passwd: &str, group: &str, name: &str) -> Option<User> {
    let Some(line) = entry(passwd, name).or_else(|| entry_of_id(passwd, name)) else {
        return name.parse().ok().map(nameless);
    };
    let mut fields = line.split(':');
    let name = fields.next()?;
    let mut fields = fields.skip(1);
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
    let home = PathBuf::from(home);
    Some(User { name: name.to_owned(), uid, gid, groups, folder: home.clone(), home, shell: shell.to_owned() })
}

/// Somebody without an entry.
fn nameless(uid: u32) -> User {
    let home = PathBuf::from("/");
    User {
        name: uid.to_string(),
        uid,
        gid: 0,
        groups: vec![0],
        folder: home.clone(),
        home,
        shell: "/bin/sh".to_owned(),
    }
}

/// The line of a passwd, shadow or group file whose first field is `name`.
pub(crate) fn entry<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    file.lines().find(|line| line.split_once(':').is_some_and(|(first, _)| !first.is_empty() && first == name))
}

/// The first line of a passwd file whose third field is the number `id`.
fn entry_of_id<'a>(file: &'a str, id: &str) -> Option<&'a str> {
    let id: u32 = id.parse().ok()?;
    file.lines().find(|line| line.split(':').nth(2).is_some_and(|field| field.parse() == Ok(id)))
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
    fn a_user_may_be_a_number_and_be_in_a_chosen_group() {
        let found = |name| find(PASSWD, GROUP, name).map(|user| (user.name, user.uid, user.gid, user.groups));
        assert_eq!(found("1000"), Some(("user".into(), 1000, 1000, vec![1000, 27])));
        assert_eq!(found("1001"), Some(("1001".into(), 1001, 0, vec![0])));
        assert_eq!(found("user:sudo"), Some(("user".into(), 1000, 27, vec![27])));
        assert_eq!(found("1001:7"), Some(("1001".into(), 1001, 7, vec![7])));
        assert_eq!(found("user:nobodys"), None);
        assert_eq!(found("-1"), None);
        assert_eq!(find(PASSWD, GROUP, "77").unwrap().home.to_str(), Some("/"));
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
