//! Watches: what changes in a folder, as a stream or asked for.
//!
//! * **`WatchDir`** lasts as long as its stream. If events were lost it ends with `resource_exhausted`.
//! * **`CreateWatcher`** lasts until `RemoveWatcher`, whatever becomes of connections, and in a pause too, being part of the
//!   guest's memory. If events were lost, the next `GetWatcherEvents` fails with `resource_exhausted`, and those after it
//!   go on. One that nobody has asked for an hour gives way when another is created.
//!
//! A name that is moved away is `RENAME`, where it comes to is `CREATE`.

mod queue;
mod tree;

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, stream};
use rustix::rand::{GetRandomFlags, getrandom};
use sandpiper_durable::blocking;
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::filesystem::{FilesystemEvent, WatchDirResponse, WatchRequest, Watcher};
use sandpiper_protocol::process::Empty;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use self::queue::Queue;
use self::tree::Tree;
use super::failed;
use crate::fd::FdStream;
use crate::serve::connect::{Error, deadline_exceeded, end, frame};
use crate::users::User;

/// Watches at a time, of both kinds.
const MAX_WATCHES: usize = 64;

/// For how long a watcher that nobody asks is kept for certain.
const KEPT_UNASKED: Duration = Duration::from_secs(3_600);

/// Bytes that are read of inotify at once.
const READ_BUFFER: usize = 16 * 1024;

/// All watches of the data plane.
#[derive(Debug)]
pub(in crate::serve) struct Watches {
    room: Arc<Semaphore>,
    polled: Mutex<BTreeMap<String, Polled>>,
}

#[derive(Debug)]
struct Polled {
    watch: Watch,
    asked: Instant,
}

impl Default for Watches {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_WATCHES)), polled: Mutex::default() }
    }
}

impl Watches {
    fn polled(&self) -> MutexGuard<'_, BTreeMap<String, Polled>> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to watch a folder.
    pub(super) async fn start(&self, request: WatchRequest, path: PathBuf, user: User) -> Result<Watch, Error> {
        self.polled().retain(|_, polled| polled.asked.elapsed() < KEPT_UNASKED);
        let permit = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            Error::new(Code::ResourceExhausted, format!("{MAX_WATCHES} folders are watched already: end some first"))
        })?;
        let inotify = tree::inotify().map_err(failed(&path))?;
        let tree = blocking({
            let inotify = Arc::clone(&inotify);
            move || Tree::new(inotify, &request, path, user)
        })
        .await?;
        let queue = Arc::new(Queue::default());
        let task = tokio::spawn(follow(inotify, tree, Arc::clone(&queue))).abort_handle();
        Ok(Watch { queue, task, _permit: permit })
    }

    /// Keeps a watch until it is removed.
    pub(super) fn keep(&self, watch: Watch) -> Result<Watcher, Error> {
        let mut bytes = [0_u8; 16];
        // So few bytes come whole, or not at all.
        getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let watcher_id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.polled().insert(watcher_id.clone(), Polled { watch, asked: Instant::now() });
        Ok(Watcher { watcher_id })
    }

    /// What has changed since the last time.
    pub(super) fn take(&self, watcher: &Watcher) -> Result<Vec<FilesystemEvent>, Error> {
        let mut polled = self.polled();
        let kept = polled.get_mut(&watcher.watcher_id).ok_or_else(|| not_found(watcher))?;
        kept.asked = Instant::now();
        kept.watch.queue.take()
    }

    pub(super) fn remove(&self, watcher: &Watcher) -> Result<(), Error> {
        self.polled().remove(&watcher.watcher_id).map(drop).ok_or_else(|| not_found(watcher))
    }
}

fn not_found(watcher: &Watcher) -> Error {
    Error::new(Code::NotFound, format!("There is no watcher with the id {:?}", watcher.watcher_id))
}

/// A watch that goes on; dropping it ends it.
#[derive(Debug)]
pub(super) struct Watch {
    queue: Arc<Queue>,
    task: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Brings what inotify says into the queue, without end.
async fn follow(inotify: Arc<FdStream>, mut tree: Tree, queue: Arc<Queue>) {
    let mut buffer = Vec::with_capacity(READ_BUFFER);
    loop {
        let ready = match inotify.try_read(&mut buffer) {
            Ok(None) => {
                tree.catch_up();
                inotify.read(&mut buffer).await
            }
            ready => ready.map(Option::unwrap_or_default),
        };
        // A descriptor of inotify never fails and never ends, once there is one.
        if ready.is_err() {
            return queue.lose();
        }
        let bytes = buffer.clone();
        let applied = tokio::task::spawn_blocking(move || {
            let events = tree.apply(&bytes);
            (tree, events)
        });
        let Ok((same, events)) = applied.await else { return queue.lose() };
        tree = same;
        match events {
            Ok(events) => queue.push(events),
            Err(tree::Lost) => queue.lose(),
        }
    }
}

/// What the stream of `WatchDir` sends next.
enum Next {
    Start,
    Events,
    Nothing,
}

/// The envelopes of `WatchDir`: `start`, events and keepalives, until `deadline`.
pub(super) fn envelopes(
    watch: Watch,
    keepalive: Duration,
    deadline: Option<Instant>,
) -> impl Stream<Item = Vec<u8>> + Send {
    stream::unfold((watch, Next::Start), move |(watch, next)| async move {
        let (bytes, next) = match next {
            Next::Start => (frame(&WatchDirResponse::Start(Empty {})), Next::Events),
            Next::Events => events(&watch, keepalive, deadline).await,
            Next::Nothing => return None,
        };
        Some((bytes, (watch, next)))
    })
}

async fn events(watch: &Watch, keepalive: Duration, deadline: Option<Instant>) -> (Vec<u8>, Next) {
    let deadline = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => pending().await,
        }
    };
    tokio::select! {
        taken = watch.queue.next() => match taken {
            Ok(events) => {
                let frames = events.into_iter().flat_map(|event| frame(&WatchDirResponse::Filesystem(event)));
                (frames.collect(), Next::Events)
            }
            Err(error) => (end(Some(&error)), Next::Nothing),
        },
        () = sleep(keepalive) => (frame(&WatchDirResponse::Keepalive(Empty {})), Next::Events),
        () = deadline => {
            (end(Some(&deadline_exceeded())), Next::Nothing)
        }
    }
}
