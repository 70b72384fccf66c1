//! What the host's messages do to this guest.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_protocol::guest::{
    DATA_PLANE_PORT, FORWARD_PORT, FREEZE_LIMIT_SECONDS, GuestMessage, GuestMount, Init, VOLUME_FOLDER,
};
use sandpiper_protocol::template::StartCommand;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::capture::Capture;
use crate::cgroups::Cgroups;
use crate::clock::HostTime;
use crate::freeze::{self, FreezeError, Keeper, Mounted, Rest, Stopper};
use crate::link::Handler;
use crate::log::{self, Log};
use crate::serve::{App, Settings};
use crate::timeline::Timeline;
use crate::volumes::{Slots, Volumes};
use crate::{boot, forward, identity, net, network, serve};

/// For the end of the boot, should a freeze be asked for so early.
const BOOT_LIMIT: Duration = Duration::from_secs(10);

/// For the files of names, which no sandbox needs to start.
const FILES_LIMIT: Duration = Duration::from_secs(1);

/// For the first requests to wait until the root file system fills its disk; they come beside the rest of a growth that takes longer.
const GROWTH_LIMIT: Duration = Duration::from_secs(1);

/// The guest as the host sees it.
pub(crate) struct Guest {
    app: Arc<App>,
    keeper: Keeper<Stopper, Mounted>,
    volumes: Volumes,
    /// Locked while it is done, in the background.
    boot: Arc<Mutex<boot::Rest>>,
    has_users: bool,
    /// It has no root disk yet.
    is_bare: bool,
    /// The sandbox, and the generation, as which it was last told who it is.
    sandbox_id: String,
    generation: Option<u64>,
    /// Whom programs were told to ask for names. They may have chosen another since.
    resolver: Option<Ipv4Addr>,
    /// Tells them, and says whom they were told.
    telling: Option<JoinHandle<Option<Ipv4Addr>>>,
    is_serving: bool,
    log: Log,
}

impl Guest {
    /// Begins to be one; processes are put into `groups` if there are any.
    pub(crate) fn new(groups: Option<Cgroups>, log: Log) -> io::Result<Self> {
        let limit = Duration::from_secs(FREEZE_LIMIT_SECONDS);
        Ok(Self {
            app: Arc::new(App::with_groups(Settings::default(), groups.clone())),
            keeper: Keeper::start(Stopper::new(groups), Arc::new(freeze::find), limit, log.clone())?,
            volumes: Volumes::new(Slots::of_guest()),
            boot: Arc::default(),
            has_users: false,
            is_bare: boot::is_bare(),
            sandbox_id: String::new(),
            generation: None,
            resolver: None,
            telling: None,
            is_serving: false,
            log,
        })
    }

    /// Applies the host's message, lets go on what was frozen, and serves from the first message on.
    ///
    /// One that is the same as before has seen nothing but its agent restart. What its programs have made of names, addresses
    /// and routes since is theirs.
    async fn become_what_is_wanted(&mut self, init: Init, time: HostTime, timeline: &Timeline) -> Result<(), String> {
        let generation = Some(init.generation);
        self.capture_for(&init);
        if self.generation == generation {
            return self.keeper.thaw().await.map_err(|error| error.to_string());
        }
        let settings = settings(&init);
        let (default_user, start) = (settings.default_user.clone(), init.start.clone());
        let hostname = init.hostname.clone();
        let resolver = init.network.as_ref().map(|network| network.gateway);
        let enters = init.root_bytes.filter(|_| std::mem::take(&mut self.is_bare));
        if enters.is_some() {
            // Nothing of what was written in memory is on the disk.
            self.end_telling().await;
            (self.resolver, self.has_users) = (None, false);
        }
        let needs_users = !self.has_users && !self.is_bare;
        let (volumes, log) = (self.volumes.clone(), self.log.clone());
        let steps = timeline.clone();
        let identify = move || {
            identity::apply(&init, &time, &steps)?;
            if let Some(bytes) = enters {
                steps.step("enter the root disk", || identity::enter_disk(bytes, &log))?;
            }
            if needs_users {
                identity::ensure_users()?;
            }
            steps.step("mount volumes", || volumes.begin(&init.mounts, &default_user))?;
            steps.step("announce the generation", || identity::announce(&init))
        };
        let woken = timeline.step_of("wake", self.keeper.wake(identify)).await;
        woken.map_err(|error| error.to_string())?;
        self.has_users |= needs_users;
        self.app.configure(settings);
        self.finish_boot();
        self.begin_telling(hostname, resolver).await;
        let is_new_on_disk = enters.is_some() || !self.is_serving;
        if !self.is_serving {
            self.start_serving().map_err(|error| format!("The data plane cannot listen: {error}"))?;
            self.is_serving = true;
        }
        // In this boot only: a guest that is restored from it runs it already.
        if let Some(start) = start.filter(|_| is_new_on_disk) {
            self.end_telling().await;
            self.run_start_command(&start).await;
        }
        self.generation = generation;
        Ok(())
    }

    /// Captures what processes write if that is wanted; what another sandbox's wrote, of which this is made, is none of its.
    fn capture_for(&mut self, init: &Init) {
        let capture = self.app.capture();
        if self.sandbox_id != init.sandbox_id {
            capture.clear();
            self.sandbox_id.clone_from(&init.sandbox_id);
        }
        capture.switch(init.capture_output);
    }

    /// Begins to tell programs their host's name and whom to ask for others, and holds requests meanwhile, and until they find the
    /// whole disk. Not on the thread that thaws, and not without limit: `/etc` may be a file system of the sandbox's own making.
    async fn begin_telling(&mut self, hostname: String, resolver: Option<Ipv4Addr>) {
        self.end_telling().await;
        let told = self.resolver;
        let (closed, boot, log) = (self.app.gate().close().await, Arc::clone(&self.boot), self.log.clone());
        self.telling = Some(tokio::spawn(async move {
            let written = spawn_blocking(move || {
                identity::write_host_files(&hostname);
                resolver.filter(|_| told != resolver).map_or(Ok(()), network::write_resolver)
            });
            let written = timeout(FILES_LIMIT, written).await;
            let _ = timeout(GROWTH_LIMIT, boot.lock()).await;
            drop(closed);
            match written {
                Ok(Ok(Ok(()))) => return resolver,
                Ok(Ok(Err(error))) => log.warn(format!("Programs are not told whom to ask for names: {error}")),
                Ok(Err(_)) | Err(_) => {}
            }
            told
        }));
    }

    /// Waits until that is done: for as long as the limits say.
    async fn end_telling(&mut self) {
        if let Some(telling) = self.telling.take()
            && let Ok(told) = telling.await
        {
            self.resolver = told;
        }
    }

    /// Begins what the host need not wait for. Every time: a snapshot may have been restored onto a larger disk.
    fn finish_boot(&self) {
        // Taken here, not in the background, so that a freeze which comes next waits for it.
        let Ok(mut boot) = Arc::clone(&self.boot).try_lock_owned() else { return };
        let log = self.log.clone();
        spawn_blocking(move || {
            for problem in boot.finish() {
                log.warn(problem);
            }
        });
    }

    /// What processes write, on its way to the host.
    pub(crate) fn capture(&self) -> &Capture {
        self.app.capture()
    }

    async fn become_still(&mut self, rest: Rest) -> Result<(), FreezeError> {
        self.end_telling().await;
        let finished = timeout(BOOT_LIMIT, self.boot.lock()).await;
        drop(finished.map_err(|_| FreezeError::Growing)?);
        self.keeper.freeze(rest).await
    }

    /// Runs what the template starts. Whatever becomes of it, the guest goes on without it.
    async fn run_start_command(&self, start: &StartCommand) {
        match self.app.run_start_command(&start.command).await {
            Ok(running) => {
                let log = self.log.clone();
                tokio::spawn(async move {
                    if let Some(problem) = running.ended().await {
                        log.warn(problem);
                    }
                });
            }
            Err(problem) => self.log.warn(problem),
        }
    }

    fn start_serving(&self) -> io::Result<()> {
        let data_plane = net::listen(DATA_PLANE_PORT)?;
        let forwarding = net::listen(FORWARD_PORT)?;
        tokio::spawn(serve::serve(data_plane, Arc::clone(&self.app)));
        tokio::spawn(forward::serve(forwarding, self.app.gate().clone()));
        Ok(())
    }
}

impl Handler for Guest {
    async fn init(&mut self, init: Init, time: HostTime, timeline: Timeline) -> GuestMessage {
        match self.become_what_is_wanted(init, time, &timeline).await {
            Ok(()) => {
                let init_version = env!("CARGO_PKG_VERSION").to_owned();
                GuestMessage::Ready {
                    init_version,
                    steps: timeline.steps(),
                    captures_output: true,
                    is_bare: self.is_bare,
                }
            }
            Err(message) => GuestMessage::Failed { message: shortened(message) },
        }
    }

    async fn freeze(&mut self, rest: Rest) -> GuestMessage {
        match self.become_still(rest).await {
            Ok(()) => GuestMessage::Frozen { disks: rest.disks },
            Err(error) => GuestMessage::NotFrozen { message: shortened(error.to_string()) },
        }
    }

    async fn thaw(&mut self) -> GuestMessage {
        match self.keeper.thaw().await {
            Ok(()) => GuestMessage::Thawed,
            Err(error) => GuestMessage::Failed { message: shortened(error.to_string()) },
        }
    }

    async fn mount(&mut self, mounts: Vec<GuestMount>) -> GuestMessage {
        match self.volumes.mount(mounts).await {
            Ok(()) => GuestMessage::Mounted,
            Err(error) => GuestMessage::NotMounted { message: shortened(error.to_string()) },
        }
    }

    async fn unmount(&mut self, force: bool) -> GuestMessage {
        match self.volumes.unmount(force).await {
            Ok(held) => GuestMessage::Unmounted { held },
            Err(error) => GuestMessage::NotUnmounted { message: shortened(error.to_string()) },
        }
    }

    async fn format(&mut self, slot: u8) -> GuestMessage {
        match self.volumes.format(slot).await {
            Ok(()) => GuestMessage::Formatted,
            Err(error) => GuestMessage::NotFormatted { message: shortened(error.to_string()) },
        }
    }
}

/// What the host decides for requests: of the image's settings, what `init` itself leaves open.
fn settings(init: &Init) -> Settings {
    let mut envs = init.settings.env.clone();
    envs.extend(init.envs.clone());
    Settings {
        envs,
        default_user: init.settings.user.as_ref().unwrap_or(&init.default_user).clone(),
        folder: init.settings.workdir.clone(),
        volume: init.serves_volume.then(|| VOLUME_FOLDER.into()),
    }
}

fn shortened(mut message: String) -> String {
    log::truncate(&mut message);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_image_says_what_the_host_leaves_open() {
        let mut init: Init = serde_json::from_value(serde_json::json!({
            "sandbox_id": "sbx1", "hostname": "sbx1", "unix_time_ns": 0, "envs": {"A": "sandbox"}, "default_user": "user",
            "entropy": "", "generation": 1,
            "settings": {"env": {"A": "image", "B": "image"}, "workdir": "/app", "user": "1001:0"},
        }))
        .unwrap();

        let of_image = settings(&init);
        init.settings = Default::default();
        let of_host = settings(&init);

        let envs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(of_image.envs, envs(&[("A", "sandbox"), ("B", "image")]));
        assert_eq!((of_image.default_user.as_str(), of_image.folder.as_deref()), ("1001:0", Some("/app")));
        assert_eq!(of_host.envs, envs(&[("A", "sandbox")]));
        assert_eq!((of_host.default_user.as_str(), of_host.folder), ("user", None));
    }
}
