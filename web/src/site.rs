//! Where the pages of one side are.

use crate::assets::Assets;

/// A side's pages, all of them below one path.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// `/dashboard`
    pub root: &'static str,
    pub assets: &'static Assets,
}

impl Site {
    /// The path of the page on which one signs in.
    pub fn sign_in(&self) -> String {
        format!("{}/sign-in", self.root)
    }

    /// The path of the folder of style and scripts.
    pub fn folder(&self) -> String {
        format!("{}/-/assets/{}", self.root, self.assets.version())
    }

    /// Whether what is under a path is for people: an error there is a page.
    pub fn has(&self, path: &str) -> bool {
        path.strip_prefix(self.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}
