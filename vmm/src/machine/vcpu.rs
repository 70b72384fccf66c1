//! One thread per vCPU: enter the guest, serve what made it leave, again.
//!
//! ```text
//!   spawn ──▶ [enter guest] ──port or MMIO access──▶ bus ──┐
//!                  ▲   │                                   │
//!                  └───┼── the machine's end is not reported ◀┘
//!                      └── reported (by anyone), or an exit that is an end ──▶ thread ends
//! ```
//!
//! A vCPU that runs guest code without an exit notices an end only when it is kicked: [`Vcpus::stop`] sends a signal
//! whose handler does nothing, but which makes `KVM_RUN` return. A signal that comes just before `KVM_RUN` is lost, so
//! the signal is repeated until the thread is gone.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_bindings::{KVM_INTERNAL_ERROR_EMULATION, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN};
use kvm_ioctls::{VcpuExit, VcpuFd};
use sandpiper_protocol::vmm::ExitReason;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::clock::monotonic_us;
use super::ending::Ending;
use crate::devices::bus::Bus;

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
    #[error("The first vCPU did not come up")]
    FirstVcpu,
}

/// Both buses.
#[derive(Default)]
pub(crate) struct Buses {
    pub(crate) port: Bus,
    pub(crate) mmio: Bus,
}

/// The running threads.
pub(crate) struct Vcpus {
    threads: Vec<JoinHandle<()>>,
    ending: Ending,
}

impl Vcpus {
    /// Starts the threads, the first vCPU's last. Returns the time at which it entered the guest.
    pub(crate) fn start(vcpus: Vec<VcpuFd>, buses: Arc<Buses>, ending: Ending) -> Result<(Self, u64), StartError> {
        register_signal_handler(kick_signal(), on_kick)
            .map_err(|error| StartError::Signal(io::Error::from_raw_os_error(error.errno())))?;
        let mut started = Self { threads: Vec::with_capacity(vcpus.len()), ending };
        let (first_entry, entered) = mpsc::sync_channel(1);
        for (id, vcpu) in vcpus.into_iter().enumerate().rev() {
            let runner = Runner {
                id,
                vcpu,
                buses: Arc::clone(&buses),
                ending: started.ending.clone(),
                first_entry: (id == 0).then(|| first_entry.clone()),
            };
            let thread = thread::Builder::new().name(format!("vcpu{id}")).spawn(|| runner.run());
            match thread {
                Ok(thread) => started.threads.push(thread),
                Err(source) => {
                    // Some run already: this machine is over, and with it the monitor.
                    started
                        .ending
                        .report(ExitReason::Failed, format!("Cannot start the thread of vCPU {id}: {source}"));
                    return Err(StartError::Thread { id, source });
                }
            }
        }
        drop(first_entry);
        let time = entered.recv().map_err(|_| StartError::FirstVcpu)?;
        Ok((started, time))
    }

    /// Stops all threads and waits for them. The machine's end must have been reported.
    fn stop(&mut self) {
        const KICK_EVERY: Duration = Duration::from_millis(1);
        for thread in &self.threads {
            // Fails only for a thread that has ended.
            let _ = thread.kill(kick_signal());
        }
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                let _ = thread.kill(kick_signal());
                thread::sleep(KICK_EVERY);
            }
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Vcpus {
    fn drop(&mut self) {
        // Whoever drops a running machine ends it; a report that came earlier stays.
        self.ending.report(ExitReason::Stopped, "The machine was stopped");
        self.stop();
    }
}

fn kick_signal() -> libc::c_int {
    SIGRTMIN()
}

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

struct Runner {
    id: usize,
    vcpu: VcpuFd,
    buses: Arc<Buses>,
    ending: Ending,
    /// Told the time of the first entry; the first vCPU only.
    first_entry: Option<SyncSender<u64>>,
}

/// What follows from an exit.
enum After {
    Enter,
    /// The instruction that KVM could not handle is described in its run structure.
    InternalError,
    End(ExitReason, String),
}

impl Runner {
    fn run(mut self) {
        let _guard = PanicGuard { id: self.id, ending: self.ending.clone() };
        if let Some(first_entry) = self.first_entry.take() {
            let _ = first_entry.send(monotonic_us());
        }
        while !self.ending.is_reported() {
            match self.step() {
                After::Enter => {}
                After::InternalError => {
                    let message = self.internal_error();
                    self.ending.report(ExitReason::Failed, message);
                }
                After::End(reason, message) => self.ending.report(reason, message),
            }
        }
    }

    /// Enters the guest once.
    fn step(&mut self) -> After {
        let id = self.id;
        match self.vcpu.run() {
            Ok(VcpuExit::IoIn(port, data)) => self.buses.port.read(u64::from(port), data),
            Ok(VcpuExit::IoOut(port, data)) => self.buses.port.write(u64::from(port), data),
            Ok(VcpuExit::MmioRead(address, data)) => self.buses.mmio.read(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) => self.buses.mmio.write(address, data),
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
            // A kick, or a vCPU that waits to be started and was woken: look at the end, enter again.
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
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
    ending: Ending,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.ending
                .report(ExitReason::Failed, format!("The thread of vCPU {} died of a fault in the monitor", self.id));
        }
    }
}
