//! Where a copy comes from, or goes to.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    /// `-`: standard input or output.
    Stdio,
    /// A path in a sandbox, or in a volume; an empty one is the user's home, or the root.
    Remote {
        id: String,
        path: String,
    },
}

impl FromStr for Place {
    type Err = Infallible;

    /// What has a colon before any slash is elsewhere.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.split_once(':') {
            _ if text == "-" => Self::Stdio,
            Some((id, path)) if !id.is_empty() && !id.contains('/') => {
                Self::Remote { id: id.to_owned(), path: path.to_owned() }
            }
            _ => Self::Local(text.into()),
        })
    }
}

/// `name` below `folder`, both of a sandbox.
pub(super) fn below(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// The last name of a sandbox's path, if it has one: `/`, `~` and `..` have none.
pub(super) fn base_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    (!matches!(name, "" | "." | ".." | "~")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_means_elsewhere() {
        let place = |text: &str| text.parse::<Place>().unwrap();
        let sandbox = |path: &str| Place::Remote { id: "sbx1".into(), path: path.into() };
        assert_eq!(place("sbx1:/tmp/a:b"), sandbox("/tmp/a:b"));
        assert_eq!(place("sbx1:"), sandbox(""));
        assert_eq!(place("-"), Place::Stdio);
        assert_eq!(place("./a:b"), Place::Local("./a:b".into()));
        assert_eq!(place(":a"), Place::Local(":a".into()));
    }

    #[test]
    fn a_base_name_is_a_name() {
        assert_eq!(base_name("/srv/app/"), Some("app"));
        assert_eq!(base_name("a"), Some("a"));
        for path in ["/", "~", "", "..", "a/..", "~/"] {
            assert_eq!(base_name(path), None, "{path}");
        }
        assert_eq!(below("/", "a"), "/a");
        assert_eq!(below("~", "a"), "~/a");
    }
}
