//! One thread per vCPU: stands still until told to run, then enters the guest, serves what made it leave, again.
//!
//! ```text
//!   spawn ──▶ standing ──run──▶ [enter guest] ──port or MMIO access──▶ bus ──┐
//!                ▲ ▲                 ▲   │                                   │
//!                │ └──── pause ──────┼───┼── the machine's end is not reported ◀┘
//!                └── the end is reported (by anyone), or an exit that is an end
//! ```
//!
//! All that is done with a vCPU's descriptor is done on its thread: standing still, it carries out what it is given
//! ([`Vcpus::each`]), such as setting and reading registers.
//!
//! A vCPU that runs guest code without an exit notices that it is to stop only when it is kicked: a signal, whose handler
//! also sets `immediate_exit` in the vCPU's run structure, so that a kick which comes just before `KVM_RUN` is not lost.
//!
//! An access to a device is finished by the next `KVM_RUN`: until then a register that the guest loads has its old value.
//! So a vCPU that is to stop is entered once more with `immediate_exit`, which finishes that and nothing else.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_bindings::{KVM_INTERNAL_ERROR_EMULATION, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN};
use kvm_ioctls::{VcpuExit, VcpuFd};
use sandpiper_protocol::vmm::ExitReason;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::clock::monotonic_us;
use crate::devices::bus::Bus;
use crate::exit::ExitLatch;
use crate::jail::{self, Role};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("Cannot prepare the signal that stops vCPUs")]
    Signal(#[source] io::Error),
    #[error("Cannot start the thread of vCPU {id}")]
    Thread {
        id: usize,
        #[source]
        source: io::Error,
    },
    #[error("The thread of vCPU {id} has ended")]
    Gone { id: usize },
}

/// Both buses.
#[derive(Default)]
pub(crate) struct Buses {
    pub(crate) port: Bus,
    pub(crate) mmio: Bus,
}

/// What a standing vCPU is told.
enum Order {
    Do(Box<dyn FnOnce(&mut VcpuFd) + Send>),
    Run {
        buses: Arc<Buses>,
        /// Told the time of the entry.
        entered: SyncSender<u64>,
    },
}

/// The threads of a machine's vCPUs, all running or all standing still.
pub(crate) struct Vcpus {
    threads: Vec<Thread>,
    pause: Arc<AtomicBool>,
}

struct Thread {
    orders: Sender<Order>,
    /// Told when the vCPU stands still after it ran.
    standing: Receiver<()>,
    handle: Option<JoinHandle<()>>,
    is_running: bool,
}

impl Vcpus {
    /// Starts a thread for each vCPU; they stand still.
    pub(crate) fn spawn(vcpus: Vec<VcpuFd>, exit: &ExitLatch) -> Result<Self, StartError> {
        register_signal_handler(kick_signal(), on_kick)
            .map_err(|error| StartError::Signal(io::Error::from_raw_os_error(error.errno())))?;
        let pause = Arc::new(AtomicBool::new(false));
        let mut started = Self { threads: Vec::with_capacity(vcpus.len()), pause };
        for (id, vcpu) in vcpus.into_iter().enumerate() {
            let (orders, receiver) = mpsc::channel();
            let (stands, standing) = mpsc::channel();
            let (pause, exit) = (Arc::clone(&started.pause), exit.clone());
            let runner = Runner { id, vcpu, exit, pause };
            let handle = jail::spawn(Role::Vcpu, move || runner.obey(&receiver, &stands))
                .map_err(|source| StartError::Thread { id, source })?;
            started.threads.push(Thread { orders, standing, handle: Some(handle), is_running: false });
        }
        Ok(started)
    }

    /// Has each standing vCPU do `work(its number, it)`, all at the same time, and returns the results in their order.
    pub(crate) fn each<T: Send + 'static>(
        &self,
        mut work: impl FnMut(usize) -> Box<dyn FnOnce(&mut VcpuFd) -> T + Send>,
    ) -> Result<Vec<T>, StartError> {
        let results: Vec<Receiver<T>> = self
            .threads
            .iter()
            .enumerate()
            .map(|(id, thread)| {
                let (result, receiver) = mpsc::sync_channel(1);
                let work = work(id);
                let order = Order::Do(Box::new(move |vcpu| {
                    // Nobody waits any more only if this machine is given up.
                    let _ = result.send(work(vcpu));
                }));
                // A thread that has ended drops the order, and so the sender.
                let _ = thread.orders.send(order);
                receiver
            })
            .collect();
        let collect = |(id, result): (usize, Receiver<T>)| result.recv().map_err(|_| StartError::Gone { id });
        results.into_iter().enumerate().map(collect).collect()
    }

    /// Lets all vCPUs run, the first one last. Returns the time at which it entered the guest.
    pub(crate) fn run(&mut self, buses: &Arc<Buses>) -> Result<u64, StartError> {
        self.pause.store(false, Ordering::SeqCst);
        let mut time = 0;
        for (id, thread) in self.threads.iter_mut().enumerate().rev() {
            let (entered, entry) = mpsc::sync_channel(1);
            let order = Order::Run { buses: Arc::clone(buses), entered };
            thread.orders.send(order).map_err(|_| StartError::Gone { id })?;
            thread.is_running = true;
            if id == 0 {
                time = entry.recv().map_err(|_| StartError::Gone { id })?;
            }
        }
        Ok(time)
    }

    /// Stops all vCPUs between two instructions; when this returns all stand still.
    pub(crate) fn pause(&mut self) {
        self.pause.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.kick();
        }
        for thread in &mut self.threads {
            thread.wait_until_standing();
        }
    }
}

impl Thread {
    fn kick(&self) {
        if let Some(handle) = self.handle.as_ref().filter(|handle| self.is_running && !handle.is_finished()) {
            // Fails only for a thread that has just ended.
            let _ = handle.kill(kick_signal());
        }
    }

    fn wait_until_standing(&mut self) {
        /// A kick is not lost, so this is for the day when it is.
        const KICK_AGAIN: Duration = Duration::from_millis(20);
        while self.is_running {
            match self.standing.recv_timeout(KICK_AGAIN) {
                Err(mpsc::RecvTimeoutError::Timeout) => self.kick(),
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => self.is_running = false,
            }
        }
    }
}

impl Drop for Vcpus {
    fn drop(&mut self) {
        self.pause();
        for mut thread in self.threads.drain(..) {
            drop(thread.orders);
            if let Some(handle) = thread.handle.take() {
                // A panic has been reported by the thread itself.
                let _ = handle.join();
            }
        }
    }
}

fn kick_signal() -> libc::c_int {
    SIGRTMIN()
}

thread_local! {
    /// `immediate_exit` of this thread's vCPU, or null.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: a vCPU thread sets this to a byte of its vCPU's run structure and back to null before that is unmapped;
        // the handler runs on the same thread. A single byte, which KVM reads when it is entered.
        unsafe { flag.write_volatile(1) };
    }
}

struct Runner {
    id: usize,
    vcpu: VcpuFd,
    exit: ExitLatch,
    pause: Arc<AtomicBool>,
}

/// What follows from an exit.
enum After {
    Enter,
    /// Kicked, or woken without a reason of its own.
    Look,
    /// The instruction that KVM could not handle is described in its run structure.
    InternalError,
    End(ExitReason, String),
}

/// Most accesses that one instruction makes.
const MAX_ACCESSES: usize = 64;

impl Runner {
    /// Carries out orders until there can be none any more.
    fn obey(mut self, orders: &Receiver<Order>, stands: &Sender<()>) {
        let _guard = PanicGuard { id: self.id, exit: self.exit.clone() };
        IMMEDIATE_EXIT.set(&raw mut self.vcpu.get_kvm_run().immediate_exit);
        while let Ok(order) = orders.recv() {
            match order {
                Order::Do(work) => work(&mut self.vcpu),
                Order::Run { buses, entered } => {
                    // Nobody waits for any but the first vCPU's.
                    let _ = entered.send(monotonic_us());
                    self.run(&buses);
                    if stands.send(()).is_err() {
                        break;
                    }
                }
            }
        }
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }

    /// Runs the guest until the machine ends or is to pause.
    fn run(&mut self, buses: &Buses) {
        while !self.exit.is_reported() && !self.pause.load(Ordering::SeqCst) {
            self.once(buses);
        }
        if !self.exit.is_reported() {
            self.finish_access(buses);
        }
        self.vcpu.set_kvm_immediate_exit(0);
    }

    fn once(&mut self, buses: &Buses) -> After {
        let after = self.step(buses);
        match &after {
            After::Enter => {}
            // Only a kick sets it, and what the kick is for is looked at next.
            After::Look => self.vcpu.set_kvm_immediate_exit(0),
            After::InternalError => {
                let message = self.internal_error();
                self.exit.report(ExitReason::Failed, message);
            }
            After::End(reason, message) => self.exit.report(*reason, message.clone()),
        }
        after
    }

    /// Has KVM finish the access that the last exit was for, without running the guest.
    fn finish_access(&mut self, buses: &Buses) {
        for _ in 0..MAX_ACCESSES {
            self.vcpu.set_kvm_immediate_exit(1);
            if !matches!(self.once(buses), After::Enter) {
                return;
            }
        }
        self.exit.report(ExitReason::Failed, format!("vCPU {} cannot be stopped between two instructions", self.id));
    }

    /// Enters the guest once.
    fn step(&mut self, buses: &Buses) -> After {
        let id = self.id;
        match self.vcpu.run() {
            Ok(VcpuExit::IoIn(port, data)) => buses.port.read(u64::from(port), data),
            Ok(VcpuExit::IoOut(port, data)) => buses.port.write(u64::from(port), data),
            Ok(VcpuExit::MmioRead(address, data)) => buses.mmio.read(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) => buses.mmio.write(address, data),
            // Halting is KVM's; an exit for it means an interrupt that must be looked at.
            Ok(VcpuExit::Hlt | VcpuExit::Intr | VcpuExit::IrqWindowOpen) => {}
            Ok(VcpuExit::Shutdown) => {
                return After::End(ExitReason::GuestReset, format!("vCPU {id} ended in a triple fault"));
            }
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _)) => {
                return After::End(ExitReason::GuestPoweredOff, "The guest powered itself off".to_owned());
            }
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET, _)) => {
                return After::End(ExitReason::GuestReset, "The guest reset itself".to_owned());
            }
            Ok(VcpuExit::FailEntry(reason, cpu)) => {
                let message = format!("vCPU {id} cannot enter the guest: hardware reason {reason:#x} on CPU {cpu}");
                return After::End(ExitReason::Failed, message);
            }
            Ok(VcpuExit::InternalError) => return After::InternalError,
            Ok(other) => {
                return After::End(ExitReason::Failed, format!("vCPU {id} left the guest unexpectedly: {other:?}"));
            }
            // A kick, or a vCPU that waits to be started and was woken.
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => return After::Look,
            Err(error) => return After::End(ExitReason::Failed, format!("KVM cannot run vCPU {id}: {error}")),
        }
        After::Enter
    }

    fn internal_error(&mut self) -> String {
        let id = self.id;
        let address =
            self.vcpu.get_regs().map_or_else(|_| "unknown".to_owned(), |registers| format!("{:#x}", registers.rip));
        // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which KVM fills this member of the union; all its fields are
        // plain integers.
        let internal = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
        let kind = match internal.suberror {
            KVM_INTERNAL_ERROR_EMULATION => "an instruction that KVM cannot emulate".to_owned(),
            suberror => format!("KVM's internal error {suberror}"),
        };
        let known = usize::try_from(internal.ndata).unwrap_or(usize::MAX).min(internal.data.len());
        format!("vCPU {id} met {kind} at {address}, data {:x?}", &internal.data[..known])
    }
}

/// A vCPU thread that dies must not leave a machine that is half alive.
struct PanicGuard {
    id: usize,
    exit: ExitLatch,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.exit
                .report(ExitReason::Failed, format!("The thread of vCPU {} died of a fault in the monitor", self.id));
        }
    }
}
