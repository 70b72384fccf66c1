//! A PostgreSQL server of its own, Debian's, which waits for its disk as one in use does.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::unistd::{User, chown};

/// How long a start may take, with the repair of what a killed server has left.
const START: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    user: User,
    server: Child,
}

impl Postgres {
    /// Makes a new server, in this folder.
    pub(crate) fn start(folder: &Path) -> anyhow::Result<Self> {
        let programs = programs()?;
        let user = User::from_name("postgres")?.context("PostgreSQL's package has made no user postgres")?;
        fs::create_dir_all(folder)?;
        chown(folder, Some(user.uid), Some(user.gid))?;
        let made = Command::new(programs.join("initdb"))
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"])
            .arg(format!("--pgdata={}", folder.join("data").display()))
            .current_dir(folder)
            .uid(user.uid.as_raw())
            .gid(user.gid.as_raw())
            .output()?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let server = serve(&programs, folder, &user)?;
        let mut this = Self { programs, folder: folder.to_owned(), user, server };
        this.is_up()?;
        Ok(this)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres:///postgres?host={}&user=postgres", self.folder.display())
    }

    /// Kills it with SIGKILL. Its processes for connections end as they notice.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.server.kill()?;
        self.server.wait()?;
        Ok(())
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.server = serve(&self.programs, &self.folder, &self.user)?;
        self.is_up()
    }

    /// Waits until it answers. It refuses to start while processes of the last server live: then it is started again.
    fn is_up(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let asked = Command::new(self.programs.join("pg_isready"))
                .args(["--quiet", "--username=postgres"])
                .arg(format!("--host={}", self.folder.display()))
                .status()?;
            if asked.success() {
                return Ok(());
            }
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            ensure!(begin.elapsed() < START, "PostgreSQL does not start; it said:\n{}", log());
            if self.server.try_wait()?.is_some() {
                self.server = serve(&self.programs, &self.folder, &self.user)?;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Fails when it has ended, which is as good.
        let _ = self.kill();
    }
}

fn serve(programs: &Path, folder: &Path, user: &User) -> anyhow::Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log"))?;
    let child = Command::new(programs.join("postgres"))
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        .args(["-c", "listen_addresses=", "-c", "max_connections=200"])
        .current_dir(folder)
        .uid(user.uid.as_raw())
        .gid(user.gid.as_raw())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}

/// Of the newest version that is installed.
fn programs() -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is not installed")?;
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(version);
    Ok(newest.context("PostgreSQL is not installed")?.join("bin"))
}
