//! The thread that freezes, thaws and wakes, and the watch over it.
//!
//! Its work may wait for disks and processes, so it is not the runtime's; and it must be done while every helper thread
//! of the runtime is stopped by a frozen file system, so it is none of those either.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::disks::FindError;
use super::{Disk, FreezeError, Freezer, Processes, Rest, WakeError};
use crate::identity::IdentityError;
use crate::log::Log;

/// For everything written before a freeze to reach the disks.
const SYNC_LIMIT: Duration = Duration::from_secs(12);

/// Jobs that wait for the thread: one of the link's and one of the watch's, at most.
const QUEUE: usize = 2;

type Job<P, D> = Box<dyn FnOnce(&mut Freezer<P, D>) + Send>;

/// The thread is no more, which happens only when its work panicked.
#[derive(Debug, thiserror::Error)]
#[error("The freezer thread has ended")]
pub(crate) struct Gone;

/// How the file systems to freeze are found.
pub(crate) type Find<D> = Arc<dyn Fn() -> Result<Vec<D>, FindError> + Send + Sync>;

/// The owner of a [`Freezer`].
pub(crate) struct Keeper<P, D> {
    worker: Worker<P, D>,
    find: Find<D>,
    log: Log,
    /// How long the guest stays frozen when it hears nothing.
    limit: Duration,
    watch: Option<JoinHandle<()>>,
}

impl<P: Processes, D: Disk> Keeper<P, D> {
    pub(crate) fn start(processes: P, find: Find<D>, limit: Duration, log: Log) -> io::Result<Self> {
        Ok(Self { worker: Worker::start(Freezer::new(processes))?, find, log, limit, watch: None })
    }

    /// Brings the guest to rest, anew if it was before.
    pub(crate) async fn freeze(&mut self, rest: Rest) -> Result<(), FreezeError> {
        self.end_watch();
        // Also so that nothing below waits for a disk that is frozen. What cannot be thawed cannot be frozen, and says
        // so.
        let _ = self.worker.run(Freezer::thaw).await?;
        let find = Arc::clone(&self.find);
        // Not on the one thread that could thaw: a path may lead through a file system that never answers.
        let found = timeout(SYNC_LIMIT, tokio::task::spawn_blocking(move || find())).await;
        let Ok(found) = found else { return Err(FreezeError::Slow(SYNC_LIMIT.as_secs())) };
        let found = found.map_err(|_| Gone)?.map_err(FreezeError::Disks)?;
        self.worker.run(move |freezer| freezer.freeze(found, rest)).await??;
        if !rest.stays {
            self.begin_watch();
        }
        Ok(())
    }

    /// Lets the guest go on as it was.
    pub(crate) async fn thaw(&mut self) -> Result<(), WakeError> {
        self.end_watch();
        self.worker.run(Freezer::thaw).await?
    }

    /// Lets the guest go on as whom `identify` makes it. If that fails processes stay stopped, for ever if need be.
    pub(crate) async fn wake(
        &mut self,
        identify: impl FnOnce() -> Result<(), IdentityError> + Send + 'static,
    ) -> Result<(), WakeError> {
        self.end_watch();
        self.worker.run(move |freezer| freezer.wake(identify)).await?
    }

    /// A host that has died must not leave the guest frozen. The time is the guest's own, which stands still while a
    /// snapshot of it is kept.
    fn begin_watch(&mut self) {
        let (worker, log, limit) = (self.worker.clone(), self.log.clone(), self.limit);
        self.watch = Some(tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            log.warn(format!(
                "The guest was frozen for {} s without a word from the host, and goes on",
                limit.as_secs()
            ));
            if let Err(error) = worker.run(Freezer::thaw).await.map_err(WakeError::from).flatten() {
                log.error(error.to_string());
            }
        }));
    }

    /// Before the thread is given anything else: it then does in order what it was given, so that a watch which was
    /// just over thaws before what comes next, not after it.
    fn end_watch(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

impl<P, D> Drop for Keeper<P, D> {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

/// The thread's end for those who have work for it.
struct Worker<P, D> {
    jobs: mpsc::Sender<Job<P, D>>,
}

impl<P, D> Clone for Worker<P, D> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<P: Processes, D: Disk> Worker<P, D> {
    fn start(mut freezer: Freezer<P, D>) -> io::Result<Self> {
        let (jobs, mut waiting) = mpsc::channel::<Job<P, D>>(QUEUE);
        thread::Builder::new().name("freezer".to_owned()).spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                job(&mut freezer);
            }
        })?;
        Ok(Self { jobs })
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Freezer<P, D>) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, answered) = oneshot::channel();
        let job: Job<P, D> = Box::new(move |freezer| drop(answer.send(job(freezer))));
        self.jobs.send(job).await.map_err(|_| Gone)?;
        answered.await.map_err(|_| Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use sandpiper_protocol::guest::GuestMessage;

    /// For anything that a test waits for.
    const TIMEOUT: Duration = Duration::from_secs(30);

    type Fake = Keeper<FakeProcesses, FakeDisk>;

    fn keeper(limit: Duration) -> (Fake, Journal, mpsc::Receiver<GuestMessage>) {
        let journal = Journal::new(None);
        let (log, to_host) = crate::log::channel();
        let find: Find<FakeDisk> = Arc::new({
            let journal = journal.clone();
            move || {
                journal.add("sync").unwrap();
                Ok(vec![disk("/", &journal)])
            }
        });
        let keeper = Keeper::start(FakeProcesses(journal.clone()), find, limit, log).unwrap();
        (keeper, journal, to_host)
    }

    #[tokio::test]
    async fn disks_are_written_out_while_everything_still_runs() {
        let (mut keeper, journal, _to_host) = keeper(TIMEOUT);

        keeper.freeze(ALL).await.unwrap();

        assert_eq!(journal.take(), ["release", "sync", "stop", "freeze /"]);
    }

    #[tokio::test]
    async fn a_guest_that_is_to_stay_frozen_waits_for_the_host_however_long() {
        let (mut keeper, journal, mut to_host) = keeper(Duration::from_millis(1));

        keeper.freeze(Rest { disks: false, stays: true, ..ALL }).await.unwrap();
        let heard = timeout(Duration::from_millis(100), to_host.recv()).await;

        assert!(heard.is_err(), "{heard:?}");
        assert_eq!(journal.take(), ["release", "sync", "stop", "write out /"]);
        keeper.wake(|| Ok(())).await.unwrap();
        assert_eq!(journal.take(), ["release"]);
    }

    #[tokio::test]
    async fn a_second_freeze_begins_with_a_guest_that_runs() {
        let (mut keeper, journal, _to_host) = keeper(TIMEOUT);
        keeper.freeze(Rest { processes: false, ..ALL }).await.unwrap();
        journal.take();

        keeper.freeze(ALL).await.unwrap();

        assert_eq!(journal.take(), ["thaw /", "release", "sync", "stop", "freeze /"]);
    }

    #[tokio::test]
    async fn a_guest_that_hears_nothing_thaws_itself_and_says_so() {
        for (disks, of_disks) in [(true, &["freeze /", "thaw /"][..]), (false, &["write out /"])] {
            let (mut keeper, journal, mut to_host) = keeper(Duration::from_millis(20));

            keeper.freeze(Rest { disks, ..ALL }).await.unwrap();
            let line = timeout(TIMEOUT, to_host.recv()).await.unwrap().unwrap();
            keeper.thaw().await.unwrap();

            assert!(matches!(line, GuestMessage::Log { .. }), "{line:?}");
            let done = [&["release", "sync", "stop"], of_disks, &["release", "release"]].concat();
            assert_eq!(journal.take(), done, "the last is of the second thaw, which finds nothing frozen");
        }
    }

    #[tokio::test]
    async fn neither_a_thaw_nor_a_wake_leaves_the_watch_behind() {
        let (mut keeper, journal, mut to_host) = keeper(TIMEOUT);

        keeper.freeze(ALL).await.unwrap();
        keeper.thaw().await.unwrap();
        assert!(keeper.watch.is_none());
        keeper.freeze(ALL).await.unwrap();
        let refused = keeper.wake(|| Err(IdentityError::Clock(io::ErrorKind::InvalidInput.into()))).await;

        assert!(matches!(refused, Err(WakeError::Identity(_))));
        assert!(keeper.watch.is_none(), "processes that do not know who they are stay stopped");
        assert_eq!(journal.take().last().map(String::as_str), Some("thaw /"));
        assert!(to_host.try_recv().is_err());
    }
}
