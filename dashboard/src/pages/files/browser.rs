//! What is at a path, as pages show it.

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;

use super::{At, Place, last};
use crate::api::Problem;
use crate::view;
use crate::visit::{Visit, with_query};

/// Something that has a path.
#[derive(Debug, Deserialize)]
pub(in crate::pages) struct Entry {
    pub(in crate::pages) path: String,
    pub(in crate::pages) kind: String,
    pub(in crate::pages) size: u64,
    pub(in crate::pages) mode: String,
    pub(in crate::pages) modified_at: Option<Timestamp>,
    /// What a symbolic link says.
    pub(in crate::pages) target: Option<String>,
    pub(in crate::pages) owner: Option<String>,
    pub(in crate::pages) group: Option<String>,
}

impl Entry {
    pub(in crate::pages) fn name(&self) -> String {
        view::name(last(&self.path))
    }

    pub(in crate::pages) fn is_folder(&self) -> bool {
        self.kind == "directory"
    }

    pub(in crate::pages) fn is_file(&self) -> bool {
        self.kind == "file"
    }
}

/// What is at a path: a folder with its entries, or something else.
pub(in crate::pages) struct Browser {
    /// The page of a path.
    page: String,
    /// See [`Place::files`].
    files: String,
    pub(in crate::pages) at: String,
    pub(in crate::pages) entry: Option<Entry>,
    pub(in crate::pages) entries: Vec<Entry>,
    pub(in crate::pages) next: Option<String>,
    /// Why it cannot be shown now.
    pub(in crate::pages) problem: Option<Problem>,
}

impl Browser {
    /// Looks at a path.
    pub(in crate::pages) async fn look(visit: &Visit, place: &Place, at: At) -> Self {
        let path = at.path.filter(|path| !path.is_empty()).unwrap_or_else(|| place.home().to_owned());
        let (page, files) = (visit.at(&place.page()), visit.at(&place.files()));
        let mut browser = Self { page, files, at: path, entry: None, entries: Vec::new(), next: None, problem: None };
        browser.problem = browser.read(visit, place, at.next_token.as_deref()).await.err();
        browser
    }

    async fn read(&mut self, visit: &Visit, place: &Place, from: Option<&str>) -> Result<(), Problem> {
        #[derive(Deserialize)]
        struct Directory {
            entries: Vec<Entry>,
            next_token: Option<String>,
        }
        let path = with_query(&format!("{}/path", place.api()), &[("path", Some(&self.at))]);
        let entry: Entry = visit.get(&path).await?;
        // Absolute, whatever was asked for.
        self.at.clone_from(&entry.path);
        if entry.is_folder() {
            let wanted = [("path", Some(self.at.as_str())), ("limit", Some("100")), ("next_token", from)];
            let list = with_query(&format!("{}/directories", place.api()), &wanted);
            let Directory { entries, next_token } = visit.get(&list).await?;
            self.entries = entries;
            let next =
                |token: String| with_query(&self.page, &[("path", Some(&self.at)), ("next_token", Some(&token))]);
            self.next = next_token.map(next);
        }
        self.entry = Some(entry);
        Ok(())
    }

    /// 404 where nothing is at the path.
    pub(in crate::pages) fn status(&self) -> StatusCode {
        match &self.problem {
            Some(problem) if problem.status == StatusCode::NOT_FOUND => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        }
    }

    pub(in crate::pages) fn is_root(&self) -> bool {
        self.at.trim_matches('/').is_empty()
    }

    /// The folders on the way to what is looked at: name and page.
    pub(in crate::pages) fn above(&self) -> Vec<(String, String)> {
        let mut above = vec![("/".to_owned(), self.of("/"))];
        let path = self.at.trim_end_matches('/');
        for (end, _) in path.match_indices('/').skip(1) {
            let folder = path.get(..end).unwrap_or_default();
            above.push((format!("{}/", view::name(last(folder))), self.of(folder)));
        }
        above
    }

    pub(in crate::pages) fn name(&self) -> String {
        view::name(last(self.at.trim_end_matches('/')))
    }

    /// As it is typed, where that can be typed.
    pub(in crate::pages) fn exact_name(&self) -> &str {
        last(self.at.trim_end_matches('/'))
    }

    pub(in crate::pages) fn of(&self, path: &str) -> String {
        with_query(&self.page, &[("path", Some(path))])
    }

    pub(in crate::pages) fn content(&self, path: &str) -> String {
        with_query(&format!("{}/content", self.files), &[("path", Some(path))])
    }

    pub(in crate::pages) fn upload(&self) -> String {
        with_query(&self.files, &[("path", Some(&self.at))])
    }

    pub(in crate::pages) fn act(&self) -> String {
        with_query(&format!("{}/do", self.files), &[("path", Some(&self.at))])
    }
}
