//! Network namespaces that have names, as `ip netns` makes and lists them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// Where names are, by the convention of iproute2.
const FOLDER: &str = "/run/netns";

/// A network namespace, open.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// Makes a new namespace and gives it a name, which keeps it until [`remove`]. An error leaves nothing behind. Blocks.
    pub fn create(name: &str) -> io::Result<Self> {
        let path = prepare(name)?;
        let made = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            File::open(&path)
        });
        match made {
            Ok(file) => Ok(Self { fd: file.into() }),
            Err(error) => {
                let _ = remove(name);
                Err(error)
            }
        }
    }

    /// Makes a new namespace without a name, which goes with this. Blocks.
    pub fn unnamed() -> io::Result<Self> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::current()
        })
    }

    /// Opens the namespace of this name. Blocks.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = Path::new(FOLDER).join(name);
        let file = File::open(&path)?;
        if fstatfs(&file)?.filesystem_type() != NSFS_MAGIC {
            // A process ended between making the file and mounting the namespace on it.
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is no namespace", path.display())));
        }
        Ok(Self { fd: file.into() })
    }

    /// The namespace that the calling thread is in.
    pub fn current() -> io::Result<Self> {
        Ok(Self { fd: File::open("/proc/thread-self/ns/net")?.into() })
    }

    /// Does something within the namespace, on a thread of its own: sockets that it makes stay there. Blocks.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            setns(&self.fd, CloneFlags::CLONE_NEWNET)?;
            work()
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes a namespace's name away; it goes when the last process and descriptor of it is gone. Fine if there is none. Blocks.
pub fn remove(name: &str) -> io::Result<()> {
    let path = Path::new(FOLDER).join(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The names of all namespaces that begin with `prefix`. Blocks.
pub fn names(prefix: &str) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok().filter(|name| name.starts_with(prefix)));
    }
    Ok(names)
}

/// The file that a namespace is mounted on. The folder is a shared mount of its own, as iproute2 wants it, so that a name
/// that is taken away is away in every mount namespace that has it. Only one process at a time, iproute2 included, sees to
/// that, so that it is mounted once.
fn prepare(name: &str) -> io::Result<PathBuf> {
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder)?;
    let lock = File::open(folder)?;
    lock.lock()?;
    let share = || mount(None::<&str>, folder, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    if share() == Err(Errno::EINVAL) {
        mount(Some(folder), folder, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
        share()?;
    }
    drop(lock);
    let path = folder.join(name);
    OpenOptions::new().write(true).create_new(true).open(&path)?;
    Ok(path)
}

/// A thread that entered another namespace is of no use to anyone else, so it ends with its work.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_namespace_has_a_name_until_it_is_removed_and_sockets_of_its_own() {
        let name = format!("sptest-{}", std::process::id());
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let netns = Netns::create(&name).unwrap();
        assert_eq!(names(&name).unwrap(), std::slice::from_ref(&name));
        assert!(Netns::create(&name).is_err(), "the name is taken");

        // Its loopback device is down, so what is in use here is not even an address there.
        let address = here.local_addr().unwrap();
        let error = netns.run(|| std::net::TcpStream::connect(address)).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::ConnectionRefused);

        remove(&name).unwrap();
        assert!(names(&name).unwrap().is_empty());
        remove(&name).unwrap();
    }
}
