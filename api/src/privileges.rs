//! From root to the user who serves.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, chown, geteuid, initgroups, setgid, setuid};
use sandpiper_db::private_files;

use crate::config::Config;

/// Why the process stays what it is.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("There is no user {name:?}; make one with: useradd --system {name}")]
    NoUser { name: String },
    #[error("Only root can become the user {name:?}; start as root, or leave `user` out of the configuration")]
    NotRoot { name: String },
    #[error("Cannot {what}")]
    System { what: &'static str, source: std::io::Error },
}

/// The configured user, and the group of that user; `None` where none is configured.
///
/// # Errors
///
/// There is no such user.
pub fn configured_user(config: &Config) -> Result<Option<(Uid, Gid)>, PrivilegeError> {
    let Some(name) = &config.user else { return Ok(None) };
    let looked_up = User::from_name(name)
        .map_err(|error| PrivilegeError::System { what: "look up the user", source: error.into() })?;
    let user = looked_up.ok_or_else(|| PrivilegeError::NoUser { name: name.clone() })?;
    Ok(Some((user.uid, user.gid)))
}

/// Becomes the configured user, for good, and gives that user the state folder. Without one configured, nothing happens.
///
/// To be called before there are threads.
pub fn drop_privileges(config: &Config) -> Result<(), PrivilegeError> {
    let Some(name) = &config.user else { return Ok(()) };
    let Some((uid, gid)) = configured_user(config)? else { return Ok(()) };
    let system = |what| move |error: nix::Error| PrivilegeError::System { what, source: error.into() };
    if geteuid() == uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(PrivilegeError::NotRoot { name: name.clone() });
    }
    let database = config.database();
    let key_files: Vec<_> = config.key_files().collect();
    for folder in database.folder().into_iter().chain(key_files.iter().filter_map(|file| file.parent())) {
        if !folder.exists() {
            private_files::folder(folder)
                .map_err(|source| PrivilegeError::System { what: "make the state folder", source })?;
            chown(folder, Some(uid), Some(gid)).map_err(system("give away the state folder"))?;
        }
    }
    become_user(name, uid, gid)
}

/// Groups first: without root they can no longer be changed.
fn become_user(name: &str, uid: Uid, gid: Gid) -> Result<(), PrivilegeError> {
    let system = |what| move |error: nix::Error| PrivilegeError::System { what, source: error.into() };
    let c_name = CString::new(name).map_err(|_| PrivilegeError::NoUser { name: name.to_owned() })?;
    initgroups(&c_name, gid).map_err(system("set the user's groups"))?;
    setgid(gid).map_err(system("become the user's group"))?;
    setuid(uid).map_err(system("become the user"))
}
