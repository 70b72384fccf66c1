//! The context of a build: a folder, as a stream of a tar archive.
//!
//! What `.dockerignore` leaves out is not in it, as with Docker, and nothing from outside of the folder: links are sent as
//! links and never followed. Everything is root's in it. It takes the memory of the names in one path's folders, however
//! much there is in them.

mod ignore;
mod pack;
mod pattern;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use self::ignore::{Ignore, Matches};
pub(crate) use self::pack::{PackError, pack};

const IGNORE_FILE: &str = ".dockerignore";
/// Docker does not know it. Whoever builds from the context would, and leave something else out.
const OTHER_IGNORE_FILE: &str = ".containerignore";

/// A folder that a Dockerfile copies from.
#[derive(Debug)]
pub(crate) struct Context {
    folder: PathBuf,
    ignore: Ignore,
    /// Its `.dockerignore` is not that of this Dockerfile, and whoever builds from the context must not take it for that.
    leaves_ignore_file_out: bool,
    pub(crate) dockerfile: Dockerfile,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dockerfile {
    /// Part of the context, at this path.
    At(String),
    /// Its text; it is elsewhere, or left out of the context.
    Text(String),
}

impl Context {
    /// Looks at a folder, and at its `Dockerfile` or another.
    ///
    /// # Errors
    ///
    /// Fails where the folder or the Dockerfile is not there, or `.dockerignore` cannot be understood.
    pub(crate) fn open(folder: &Path, dockerfile: Option<&Path>) -> anyhow::Result<Self> {
        let folder = folder.canonicalize().with_context(|| format!("Cannot read {}", folder.display()))?;
        if !folder.is_dir() {
            bail!("{} is not a folder", folder.display());
        }
        let path = dockerfile.map_or_else(|| folder.join("Dockerfile"), Path::to_owned);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("Cannot read {}: name the Dockerfile with -f", path.display()))?;
        let own = path.with_file_name(format!("{}{IGNORE_FILE}", file_name(&path)));
        let (ignore, is_own) = match read_ignore(&own)? {
            Some(ignore) => (ignore, true),
            None => (read_ignore(&folder.join(IGNORE_FILE))?.unwrap_or_default(), false),
        };
        let inside = inside(&folder, &path)?.filter(|path| !is_excluded(&ignore, path));
        let dockerfile = inside.map_or(Dockerfile::Text(text), Dockerfile::At);
        Ok(Self { folder, ignore, leaves_ignore_file_out: is_own, dockerfile })
    }

    /// Whether a file is none for whoever builds from the context, though nothing says that it is to be ignored.
    fn leaves_out(&self, path: &Path) -> bool {
        path == Path::new(OTHER_IGNORE_FILE) || (self.leaves_ignore_file_out && path == Path::new(IGNORE_FILE))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The path of a file from the folder that it is in; none for a link, and for what is elsewhere.
fn inside(folder: &Path, file: &Path) -> io::Result<Option<String>> {
    let parent = match file.parent() {
        Some(parent) if parent != Path::new("") => parent.canonicalize()?,
        _ => std::env::current_dir()?,
    };
    let is_file = file.symlink_metadata()?.is_file();
    let path = parent.join(file_name(file));
    Ok(path.strip_prefix(folder).ok().and_then(Path::to_str).filter(|_| is_file).map(str::to_owned))
}

fn is_excluded(ignore: &Ignore, path: &str) -> bool {
    let (mut is_excluded, mut above) = (false, Matches::default());
    for end in path.match_indices('/').map(|(end, _)| end).chain([path.len()]) {
        (is_excluded, above) = ignore.excludes(&path[..end], &above);
    }
    is_excluded
}

fn read_ignore(path: &Path) -> anyhow::Result<Option<Ignore>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("Cannot read {}", path.display())),
    };
    Ignore::parse(&text).map(Some).with_context(|| format!("{} cannot be used", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    #[test]
    fn a_dockerfile_in_the_context_is_named_and_another_is_sent_along() {
        let files = [("Dockerfile", "FROM a"), ("docker/web", "FROM b"), ("hidden", "FROM c"), (IGNORE_FILE, "hidden")];
        let (context, elsewhere) = (folder(&files), folder(&[("Dockerfile", "FROM d")]));
        let open = |path: Option<&Path>| Context::open(context.path(), path).unwrap().dockerfile;

        assert_eq!(open(None), Dockerfile::At("Dockerfile".into()));
        assert_eq!(open(Some(&context.path().join("docker/web"))), Dockerfile::At("docker/web".into()));
        assert_eq!(open(Some(&context.path().join("hidden"))), Dockerfile::Text("FROM c".into()));
        assert_eq!(open(Some(&elsewhere.path().join("Dockerfile"))), Dockerfile::Text("FROM d".into()));
        let error = Context::open(context.path(), Some(&context.path().join("none"))).unwrap_err();
        assert!(error.to_string().contains("-f"), "{error}");
    }

    #[test]
    fn a_dockerfile_may_have_an_ignore_file_of_its_own() {
        let files = [("web", "FROM a"), ("web.dockerignore", "a"), (IGNORE_FILE, "b")];
        let context = folder(&files);

        let own = Context::open(context.path(), Some(&context.path().join("web"))).unwrap();

        assert!(is_excluded(&own.ignore, "a") && !is_excluded(&own.ignore, "b"));
        assert!(own.leaves_out(Path::new(IGNORE_FILE)) && own.leaves_out(Path::new(OTHER_IGNORE_FILE)));
        assert!(!own.leaves_out(Path::new("web.dockerignore")) && !own.leaves_out(&Path::new("a").join(IGNORE_FILE)));
    }
}
