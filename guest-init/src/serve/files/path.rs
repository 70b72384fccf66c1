//! From the text of a request to an absolute path.

use std::path::{Component, PathBuf};

use crate::users::User;

/// `path` as `user` means it, without `.` and `..`. These are taken out of the text, as the official daemon does: after
/// a symbolic link, `..` leads back to where the link is.
pub(in crate::serve) fn resolve(path: &str, user: &User) -> PathBuf {
    let full = match path.strip_prefix('~') {
        Some("") => user.home.clone(),
        Some(rest) if rest.starts_with('/') => user.home.join(rest.trim_start_matches('/')),
        _ => user.folder.join(path),
    };
    let mut clean = PathBuf::from("/");
    for component in full.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_clean_and_counted_from_home() {
        let resolved = |path| resolve(path, &User::example()).to_str().unwrap().to_owned();
        assert_eq!(resolved("a/b"), "/home/user/a/b");
        assert_eq!(resolved("~"), "/home/user");
        assert_eq!(resolved("~/a"), "/home/user/a");
        assert_eq!(resolved("~root"), "/home/user/~root");
        assert_eq!(resolved("/tmp//x/./../y"), "/tmp/y");
        assert_eq!(resolved("../../../../etc"), "/etc");
        assert_eq!(resolved(""), "/home/user");
    }

    #[test]
    fn relative_paths_count_from_the_images_folder_and_a_tilde_is_the_home() {
        let user = User::example().starting_in(Some("/app"));
        assert_eq!(resolve("a", &user), PathBuf::from("/app/a"));
        assert_eq!(resolve("~/a", &user), PathBuf::from("/home/user/a"));
    }
}
