//! Slots: networks that are ready for a sandbox.
//!
//! A **slot** is a network namespace that has all a sandbox needs of the network but its policy: a tap towards the guest,
//! a pair of links to the host, addresses, routes and the firewall, which lets nothing pass yet. Making one takes tens of
//! milliseconds, most of them the kernel's; so a few are kept ready, and a sandbox that starts takes one of those.
//!
//! ```text
//!          the host's namespace     │   the slot's, `sp-7`
//!                                   │
//!   internet ── eth0 ── (forward) ── spv7 ═══ up0 ── (forward) ── tap0 ── the monitor ── guest
//!             masquerade            │             masquerade, firewall,
//!             `inet sp`             │             names (DNS, proxy)
//! ```
//!
//! ```text
//!   make ──▶ waiting ──take──▶ taken ──destroy──▶ ending ──gone──▶ (number free)
//!     └─────────────take────────▲ ▲                 ▲
//!   agent starts, in use ──adopt──┘                 │
//!   agent starts, not in use ───────────────────────┘
//! ```
//!
//! * A slot is used once. What a tenant leaves in it, connections, counters, addresses, goes with the namespace.
//! * A slot's number says its names and addresses (`crate::plan`). A number is free again when all of the slot is gone that
//!   others can see: its namespace's name and the host's end of the pair. Numbers are used in turn, so that a late answer
//!   to a slot's connection finds nobody rather than the next tenant.
//! * Nothing is written down but what a slot's proxy passed on (`crate::meter`). What a process that was killed left, whole or
//!   half made, is found by its names when the next one starts, and taken away unless a sandbox has it.
//! * Slots are made and taken away in the background, on threads that may block. A caller that gives up on [`Slots::take`]
//!   leaves a slot that waits, not one that nobody knows.

mod make;
mod remove;
mod slot;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_durable::{Interrupted, blocking};
use sandpiper_protocol::error_chain;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::slot::Tools;
pub use self::slot::{Slot, ToolsError};
use crate::config::Config;
use crate::firewall::{FirewallError, Ruleset};
use crate::host::{Host, HostError};
use crate::meter;
use crate::plan::Plan;
pub use crate::plan::{GATEWAY, GATEWAY6, GUEST, GUEST6, PREFIX, PREFIX6};

/// Slots that are made at the same time. The kernel does much of it under one lock, so more would only wait.
const MAKERS: usize = 4;
/// How often something that failed is tried again, and the host's table is looked at.
const CHECK: Duration = Duration::from_secs(5);
/// From taking a slot to making another that waits, and to taking others away: a burst of starts, and their guests' first
/// commands, come first.
const QUIET: Duration = Duration::from_secs(1);
/// How long is waited at most for a moment at which nobody has taken one for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that takes a slot waits for a number, when all of them are taken and some are about to be free.
const NUMBER_WAIT: Duration = Duration::from_secs(10);
/// How often [`Slots::close`] tries to take a slot away.
const LAST_TRIES: usize = 5;

/// Why there is no slot.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error("All {0} network slots are taken; end a sandbox or raise `network.max_slots`")]
    Full(u32),
    #[error("The network is shutting down")]
    Closed,
    #[error("Cannot {what} network slot {number}")]
    Slot { what: &'static str, number: u32, source: io::Error },
    #[error("Cannot translate the rules of network slots")]
    Rules(#[source] FirewallError),
    #[error("Cannot load the firewall of network slot {number}")]
    Firewall { number: u32, source: FirewallError },
    #[error("Cannot use network slot {number}")]
    Tools { number: u32, source: ToolsError },
    #[error(
        "The transit ranges have no addresses for network slot {0}; was `network.transit` changed while sandboxes ran?"
    )]
    NoPlan(u32),
    #[error("Network slot {0} is not one that an earlier process left in use")]
    NotLeft(u32),
    #[error("Cannot set up the host's network")]
    Host(#[from] HostError),
    #[error("Cannot find the network slots of an earlier process")]
    Find(#[source] io::Error),
    #[error("Cannot make the folder in which the slots' proxies count")]
    Meters(#[source] io::Error),
}

/// What takes a slot's time is interrupted only if the runtime ends.
impl From<Interrupted> for SlotError {
    fn from(_: Interrupted) -> Self {
        Self::Closed
    }
}

/// The slots of this host. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Slots {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<Config>,
    host: Host,
    /// Of each slot.
    rules: Ruleset,
    state: Mutex<State>,
    /// The pool may lack a slot.
    lacking: Notify,
    /// Slots are to be taken away.
    ending: Notify,
    /// A number is free, or a slot waits.
    freed: Notify,
    makers: Semaphore,
    end: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    /// Numbers of all slots of which there is anything, or about to be.
    numbers: BTreeSet<u32>,
    waiting: VecDeque<Slot>,
    /// Of an earlier process, to be adopted.
    left: BTreeSet<u32>,
    /// To be taken away, or being taken away.
    ending: Vec<Plan>,
    /// One is being made to wait.
    filling: bool,
    /// The number that was given last.
    last: u32,
    /// When one was taken last.
    taken: Option<Instant>,
    closed: bool,
}

impl State {
    /// How long it is until nobody has just taken a slot; `None` if so, and where a number is needed more than quiet.
    fn quiet_in(&self, max_slots: u32) -> Option<Duration> {
        let rest = QUIET.checked_sub(self.taken?.elapsed())?;
        (self.numbers.len() < max_slots as usize).then_some(rest)
    }
}

impl Slots {
    /// Loads the host's table, takes away what an earlier process left except the slots of sandboxes that run on, and
    /// begins to fill the pool. Each of `in_use` is to be adopted or destroyed.
    pub async fn start(config: Arc<Config>, in_use: &[u32]) -> Result<Self, SlotError> {
        let (for_host, left) = (config.clone(), in_use.iter().copied().collect::<BTreeSet<_>>());
        let highest = left.last().copied().unwrap_or_default();
        let (host, rules, found) = blocking(move || {
            meter::make_folder(&for_host.meters).map_err(SlotError::Meters)?;
            let host = Host::load(&for_host, highest)?;
            let rules = Ruleset::translate(&for_host.limits).map_err(SlotError::Rules)?;
            Ok::<_, SlotError>((host, rules, remove::find(&for_host).map_err(SlotError::Find)?))
        })
        .await?;
        let numbers: BTreeSet<u32> = found.keys().chain(&left).copied().collect();
        // Numbers go on where the earlier process was: what it left is being taken away, and should not be mistaken.
        let last = numbers.last().copied().unwrap_or_default();
        let ending: Vec<Plan> = found.into_values().filter(|plan| !left.contains(&plan.number)).collect();
        if !ending.is_empty() {
            tracing::info!(slots = ending.len(), "removing network slots of an earlier process");
        }
        let inner = Inner {
            config,
            host,
            rules,
            state: Mutex::new(State { numbers, left, ending, last, ..State::default() }),
            lacking: Notify::new(),
            ending: Notify::new(),
            freed: Notify::new(),
            makers: Semaphore::new(MAKERS),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let slots = Self { inner: Arc::new(inner) };
        slots.end_slots().await;
        slots.inner.tasks.spawn(slots.clone().keep_clean());
        slots.inner.tasks.spawn(slots.clone().keep_filled());
        slots.inner.tasks.spawn(slots.clone().keep_host());
        Ok(slots)
    }

    /// A slot: one that waits or, if none does, a new one.
    pub async fn take(&self) -> Result<Slot, SlotError> {
        self.lock().taken = Some(Instant::now());
        if let Some(slot) = self.take_waiting()? {
            return Ok(slot);
        }
        // On a task of its own: should the caller give up, the slot is put with those that wait.
        let (sender, receiver) = oneshot::channel();
        let this = self.clone();
        self.inner.tasks.spawn(async move {
            let result = this.take_or_make().await;
            if let Err(Ok(slot)) = sender.send(result) {
                this.put_back(slot);
            }
        });
        receiver.await.unwrap_or(Err(SlotError::Closed))
    }

    /// The slot of a sandbox that an earlier agent started, once. One that cannot be used is taken away.
    pub async fn adopt(&self, number: u32) -> Result<Slot, SlotError> {
        if !self.lock().left.remove(&number) {
            return Err(SlotError::NotLeft(number));
        }
        // What has no plan cannot be taken away either, so its number stays taken.
        let plan = Plan::of(&self.inner.config, number).ok_or(SlotError::NoPlan(number))?;
        let (config, found) = (self.inner.config.clone(), plan.clone());
        let adopted = blocking(move || {
            make::find(&config, &found).map_err(|source| SlotError::Slot { what: "find", number, source })
        });
        let adopted = adopted.await;
        if adopted.is_err() {
            self.put_away(plan);
        }
        adopted
    }

    /// Takes a slot away, in the background; after [`Slots::close`] the next start does.
    pub async fn destroy(&self, slot: Slot) {
        let plan = Plan::of(&self.inner.config, slot.number);
        // A namespace goes when nobody has it open.
        drop(slot);
        if let Some(plan) = plan {
            self.put_away(plan);
        }
    }

    /// Ends the upkeep, and takes away the slots that wait or are ending. If no slot is left then, the host's table goes
    /// too; otherwise the sandboxes that have them run on.
    pub async fn close(&self) {
        self.lock().closed = true;
        self.inner.end.cancel();
        self.inner.freed.notify_waiters();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        {
            let mut state = self.lock();
            let waiting = std::mem::take(&mut state.waiting);
            let plans = waiting.iter().filter_map(|slot| Plan::of(&self.inner.config, slot.number));
            state.ending.extend(plans);
        }
        for _ in 0..LAST_TRIES {
            self.end_slots().await;
        }
        let left = self.lock().numbers.len();
        if left > 0 {
            tracing::info!(left, "network slots left in place");
            return;
        }
        let this = self.clone();
        if let Err(error) = blocking(move || this.inner.host.unload().map_err(SlotError::from)).await {
            tracing::warn!(error = %error_chain::chain(&error), "cannot remove the host's nftables table");
        }
    }

    /// Slots that wait now.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn take_waiting(&self) -> Result<Option<Slot>, SlotError> {
        let mut state = self.lock();
        if state.closed {
            return Err(SlotError::Closed);
        }
        let slot = state.waiting.pop_front();
        drop(state);
        self.inner.lacking.notify_one();
        Ok(slot)
    }

    async fn take_or_make(&self) -> Result<Slot, SlotError> {
        let deadline = Instant::now() + NUMBER_WAIT;
        loop {
            let mut freed = pin!(self.inner.freed.notified());
            // From here on it is told, so that nothing is missed between looking and waiting.
            freed.as_mut().enable();
            if let Some(slot) = self.take_waiting()? {
                return Ok(slot);
            }
            let changing = self.is_changing();
            let full = match self.claim() {
                Ok(plan) => return self.make(plan).await,
                Err(error @ SlotError::Full(_)) if changing => error,
                Err(error) => return Err(error),
            };
            timeout_at(deadline, freed).await.map_err(|_| full)?;
        }
    }

    /// A number that nothing has, for a new slot.
    fn claim(&self) -> Result<Plan, SlotError> {
        let mut state = self.lock();
        if state.closed {
            return Err(SlotError::Closed);
        }
        let max = self.inner.config.max_slots;
        let in_turn = (0..max).map(|step| state.last.saturating_add(step) % max + 1);
        let number = in_turn.into_iter().find(|number| !state.numbers.contains(number)).ok_or(SlotError::Full(max))?;
        let plan = Plan::of(&self.inner.config, number).ok_or(SlotError::NoPlan(number))?;
        state.numbers.insert(number);
        state.last = number;
        Ok(plan)
    }

    /// Whether there may be a slot or a number soon though there is none now.
    fn is_changing(&self) -> bool {
        let state = self.lock();
        state.filling || !state.waiting.is_empty() || !state.ending.is_empty()
    }

    async fn make(&self, plan: Plan) -> Result<Slot, SlotError> {
        let permit = self.inner.makers.acquire().await;
        let (inner, new) = (self.inner.clone(), plan.clone());
        let made = blocking(move || make::make(&inner.config, &inner.rules, &new)).await;
        drop(permit);
        if made.is_err() {
            self.put_away(plan);
        }
        made
    }

    fn put_back(&self, slot: Slot) {
        self.lock().waiting.push_back(slot);
        self.inner.freed.notify_waiters();
    }

    fn put_away(&self, plan: Plan) {
        self.lock().ending.push(plan);
        self.inner.ending.notify_one();
    }

    /// Keeps the pool filled.
    async fn keep_filled(self) {
        while !self.inner.end.is_cancelled() {
            if let Err(error) = self.fill().await {
                tracing::warn!(error = %error_chain::chain(&error), "cannot refill the pool of network slots");
            }
            tokio::select! {
                () = self.inner.end.cancelled() => {}
                () = self.inner.lacking.notified() => {}
                () = sleep(CHECK) => {}
            }
        }
    }

    /// Waits for a while, or the end, until nobody has just taken a slot: whoever took one goes on with it now, and needs the
    /// lock that making another holds, and taking one away. False if starts did not stop.
    async fn quiet(&self) -> bool {
        let taken = async {
            // The lock goes with the condition's end.
            while let Some(rest) = { self.lock().quiet_in(self.inner.config.max_slots) } {
                sleep(rest).await;
            }
        };
        tokio::select! {
            () = self.inner.end.cancelled() => true,
            quiet = timeout(PATIENCE, taken) => quiet.is_ok(),
        }
    }

    async fn fill(&self) -> Result<(), SlotError> {
        let mut is_patient = true;
        while !self.inner.end.is_cancelled() && self.lock().waiting.len() < self.inner.config.pool as usize {
            is_patient = is_patient && self.quiet().await;
            let plan = match self.claim() {
                Ok(plan) => plan,
                // Those who take slots come first, and this is tried again when a number is free.
                Err(SlotError::Full(_) | SlotError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.lock().filling = true;
            let made = self.make(plan).await;
            self.lock().filling = false;
            self.put_back(made?);
        }
        Ok(())
    }

    /// Takes slots away that are no longer needed, all there are at a time.
    async fn keep_clean(self) {
        while !self.inner.end.is_cancelled() {
            tokio::select! {
                () = self.inner.end.cancelled() => break,
                () = self.inner.ending.notified() => drop(self.quiet().await),
                () = sleep(CHECK) => {}
            }
            self.end_slots().await;
        }
    }

    async fn end_slots(&self) {
        let ending = self.lock().ending.clone();
        if ending.is_empty() {
            return;
        }
        let config = self.inner.config.clone();
        let Ok(gone) = blocking(move || Ok::<_, SlotError>(remove::remove(&config, ending))).await else { return };
        {
            let mut state = self.lock();
            state.ending.retain(|plan| !gone.contains(&plan.number));
            state.numbers.retain(|number| !gone.contains(number));
        }
        self.inner.freed.notify_waiters();
        self.inner.lacking.notify_one();
    }

    /// Sees to it that the host's table stays, whoever reloads the host's own firewall.
    async fn keep_host(self) {
        while !self.inner.end.is_cancelled() {
            tokio::select! {
                () = self.inner.end.cancelled() => break,
                () = sleep(CHECK) => {}
            }
            let this = self.clone();
            if let Err(error) = blocking(move || this.inner.host.check().map_err(SlotError::from)).await {
                tracing::error!(error = %error_chain::chain(&error), "cannot restore the host's nftables table");
            }
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
