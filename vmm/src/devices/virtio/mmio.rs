//! The virtio-mmio transport, version 2 (virtio 1.2 section 4.2): a window of registers through which a driver finds a
//! device, negotiates with it and hands it queues.
//!
//! ```text
//!   0 ──ACKNOWLEDGE, DRIVER──▶ features ──FEATURES_OK──▶ queues ──DRIVER_OK──▶ running
//!   ▲                             │ refused: the bit stays off        │ bad queue: DEVICE_NEEDS_RESET
//!   └──────────────── status 0 (reset), from anywhere ────────────────┘
//! ```
//!
//! Registers are believed only in their phase: features before `FEATURES_OK`, queues between it and `DRIVER_OK`. What a
//! driver writes at another time, at another width or to nothing is ignored, as the specification lets a device do. A
//! queue's size and addresses are kept as written and checked all together when the driver says `DRIVER_OK`.
//!
//! Notifications do not come here: KVM turns a write to `QueueNotify` into the queue's event. Only one with a queue number
//! that it does not know, or of another width, arrives as a write, and a known number is served all the same; so are those of
//! a device whose events KVM has not been told of.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sandpiper_protocol::error_chain;
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE as ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER as DRIVER,
    VIRTIO_CONFIG_S_DRIVER_OK as DRIVER_OK, VIRTIO_CONFIG_S_FAILED as FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK as FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET as NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as register;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueState, QueueT};
use vm_memory::GuestAddress;
use vmm_sys_util::eventfd::EventFd;

use super::event_loop::log;
use super::{ActivateError, Activation, ActiveQueue, Interrupt, Memory, VirtioDevice};
use crate::devices::bus::BusDevice;

/// "virt".
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "SNDP".
const VENDOR: u32 = 0x5044_4e53;
const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;

/// Where `QueueNotify` is in the window, for its connection to the queues' events.
pub const QUEUE_NOTIFY: u64 = register::VIRTIO_MMIO_QUEUE_NOTIFY as u64;

/// A device in its window.
pub struct MmioWindow<D: ?Sized = dyn VirtioDevice>(Mutex<Window<D>>);

impl<D: VirtioDevice> MmioWindow<D> {
    /// `interrupt` is the device's line, `notify` has the events that the queues' notifications raise, one for each.
    pub fn new(device: D, memory: Memory, interrupt: Interrupt, notify: Vec<EventFd>) -> Self {
        let setup = |(&max_size, notify)| QueueSetup { max_size, notify, registers: QueueRegisters::default() };
        let queues = device.queue_sizes().iter().zip(notify).map(setup).collect();
        let window = Window {
            memory,
            interrupt,
            queues,
            status: 0,
            features: 0,
            device_features_page: 0,
            driver_features_page: 0,
            selected_queue: 0,
            config_generation: 0,
            waiting: None,
            device,
        };
        Self(Mutex::new(window))
    }
}

impl<D: VirtioDevice + ?Sized> MmioWindow<D> {
    /// Has `change` done to the device, between two accesses of its driver.
    pub fn with_device<T>(&self, change: impl FnOnce(&mut D) -> T) -> T {
        change(&mut self.lock().device)
    }

    /// As [`Self::with_device`], for a change of configuration space. If it is made, the driver is told.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn reconfigure<E>(&self, change: impl FnOnce(&mut D) -> Result<(), E>) -> Result<(), E> {
        let mut window = self.lock();
        change(&mut window.device)?;
        window.config_generation = window.config_generation.wrapping_add(1);
        if window.is(DRIVER_OK) {
            window.interrupt.config_change();
        }
        Ok(())
    }

    /// Stops the device: when this returns it touches neither guest memory nor what is behind it.
    pub fn stop(&self) {
        self.lock().reset();
    }

    /// Stops the device where it stands, and tells how that is. No vCPU may run.
    ///
    /// # Errors
    /// The device has failed before: its thread is gone, and its queues with it.
    pub fn suspend(&self) -> Result<WindowState, WindowStateError> {
        self.lock().suspend()
    }

    /// Lets a suspended device go on.
    ///
    /// # Errors
    /// Its thread cannot be started, or its events cannot be watched.
    pub fn resume(&self) -> Result<(), ActivateError> {
        self.lock().device.resume()
    }

    /// Makes a new device one that was suspended. If it ran then it will after [`Self::start`].
    ///
    /// # Errors
    /// The state is of another type of device, or its registers or queues are not valid.
    pub fn restore(&self, state: &WindowState) -> Result<(), WindowStateError> {
        self.lock().restore(state)
    }

    /// Starts a restored device. vCPUs may run before: what they ask of the device meanwhile waits in its queues.
    ///
    /// # Errors
    /// The device cannot be activated.
    pub fn start(&self) -> Result<(), WindowStateError> {
        self.lock().start()
    }

    fn lock(&self) -> MutexGuard<'_, Window<D>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: VirtioDevice + ?Sized> BusDevice for MmioWindow<D> {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let window = self.lock();
        match offset.checked_sub(u64::from(register::VIRTIO_MMIO_CONFIG)) {
            Some(offset) => {
                data.fill(0);
                window.device.read_config(offset, data);
            }
            None => match (u32::try_from(offset), <&mut [u8; 4]>::try_from(data)) {
                (Ok(offset), Ok(data)) => *data = window.read(offset).to_le_bytes(),
                // Registers are four bytes wide; others see nothing.
                (_, Err(_)) | (Err(_), _) => {}
            },
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut window = self.lock();
        match offset.checked_sub(u64::from(register::VIRTIO_MMIO_CONFIG)) {
            Some(offset) => {
                if window.is(DRIVER) {
                    window.device.write_config(offset, data);
                    window.config_generation = window.config_generation.wrapping_add(1);
                }
            }
            None => {
                if let (Ok(offset), Ok(data)) = (u32::try_from(offset), <[u8; 4]>::try_from(data)) {
                    window.write(offset, u32::from_le_bytes(data));
                }
            }
        }
    }
}

struct Window<D: ?Sized> {
    memory: Memory,
    interrupt: Interrupt,
    queues: Vec<QueueSetup>,
    /// As the driver wrote it, and only what was accepted.
    status: u32,
    /// What the driver accepted.
    features: u64,
    device_features_page: u32,
    driver_features_page: u32,
    selected_queue: u32,
    config_generation: u32,
    /// What a restored device is to be activated with.
    waiting: Option<Activation>,
    device: D,
}

struct QueueSetup {
    max_size: u16,
    notify: EventFd,
    registers: QueueRegisters,
}

/// A window and its device, apart from what is in guest memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowState {
    device_type: u32,
    status: u32,
    features: u64,
    device_features_page: u32,
    driver_features_page: u32,
    selected_queue: u32,
    config_generation: u32,
    interrupt: u32,
    queues: Vec<QueueRegisters>,
    /// Where the queues stand (next available, next used), if the device runs.
    positions: Option<Vec<(u16, u16)>>,
    /// See [`VirtioDevice::save_config`].
    config: Vec<u8>,
}

/// Why a device could not be suspended or restored.
#[derive(Debug, thiserror::Error)]
pub enum WindowStateError {
    #[error("A device of type {device_type} has failed before: its thread is gone")]
    Lost { device_type: u32 },
    #[error("The snapshot has a device of type {theirs} where this machine has one of type {ours}")]
    OtherDevice { theirs: u32, ours: u32 },
    #[error("The snapshot of a device of type {device_type} is not valid")]
    Invalid { device_type: u32 },
    #[error("A device of type {device_type} cannot be started")]
    Activate {
        device_type: u32,
        #[source]
        source: ActivateError,
    },
}

/// As the driver wrote them, unchecked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct QueueRegisters {
    size: u32,
    ready: bool,
    descriptors: u64,
    driver_area: u64,
    device_area: u64,
}

impl<D: VirtioDevice + ?Sized> Window<D> {
    fn is(&self, bits: u32) -> bool {
        self.status & bits == bits
    }

    fn offered(&self) -> u64 {
        self.device.features() | VERSION_1
    }

    fn read(&self, offset: u32) -> u32 {
        let queue = usize::try_from(self.selected_queue).ok().and_then(|index| self.queues.get(index));
        match offset {
            register::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            register::VIRTIO_MMIO_VERSION => VERSION,
            register::VIRTIO_MMIO_DEVICE_ID => self.device.device_type(),
            register::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            register::VIRTIO_MMIO_DEVICE_FEATURES => page(self.offered(), self.device_features_page),
            register::VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |queue| u32::from(queue.max_size)),
            register::VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |queue| u32::from(queue.registers.ready)),
            register::VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.status(),
            register::VIRTIO_MMIO_STATUS => {
                self.status | if self.interrupt.is_reset_needed() { NEEDS_RESET } else { 0 }
            }
            // No shared memory regions: a length of all ones says so.
            register::VIRTIO_MMIO_SHM_LEN_LOW
            | register::VIRTIO_MMIO_SHM_LEN_HIGH
            | register::VIRTIO_MMIO_SHM_BASE_LOW
            | register::VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            register::VIRTIO_MMIO_CONFIG_GENERATION => self.config_generation,
            _ => 0,
        }
    }

    fn write(&mut self, offset: u32, value: u32) {
        match offset {
            register::VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_page = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_page = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES => {
                if self.is(DRIVER) && !self.is(FEATURES_OK) {
                    set_page(&mut self.features, self.driver_features_page, value);
                }
            }
            register::VIRTIO_MMIO_QUEUE_SEL => self.selected_queue = value,
            register::VIRTIO_MMIO_QUEUE_NOTIFY => {
                let queue = usize::try_from(value & 0xffff).ok().and_then(|index| self.queues.get(index));
                if let (Some(queue), true) = (queue, self.is(DRIVER_OK)) {
                    // Fails only when the counter is full: the event is raised already.
                    let _ = queue.notify.write(1);
                    if let Err(error) = self.device.notified() {
                        self.refuse(&error);
                        self.interrupt.needs_reset();
                    }
                }
            }
            register::VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            register::VIRTIO_MMIO_STATUS => self.set_status(value),
            _ => self.write_queue(offset, value),
        }
    }

    fn write_queue(&mut self, offset: u32, value: u32) {
        if !self.is(FEATURES_OK) || self.is(DRIVER_OK) {
            return;
        }
        let index = usize::try_from(self.selected_queue).unwrap_or(usize::MAX);
        let Some(QueueSetup { registers, .. }) = self.queues.get_mut(index) else { return };
        match offset {
            register::VIRTIO_MMIO_QUEUE_NUM => registers.size = value,
            register::VIRTIO_MMIO_QUEUE_READY => registers.ready = value == 1,
            register::VIRTIO_MMIO_QUEUE_DESC_LOW => set_page(&mut registers.descriptors, 0, value),
            register::VIRTIO_MMIO_QUEUE_DESC_HIGH => set_page(&mut registers.descriptors, 1, value),
            register::VIRTIO_MMIO_QUEUE_AVAIL_LOW => set_page(&mut registers.driver_area, 0, value),
            register::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => set_page(&mut registers.driver_area, 1, value),
            register::VIRTIO_MMIO_QUEUE_USED_LOW => set_page(&mut registers.device_area, 0, value),
            register::VIRTIO_MMIO_QUEUE_USED_HIGH => set_page(&mut registers.device_area, 1, value),
            _ => {}
        }
    }

    /// The handshake. A step is taken only after the ones before it; bits are never taken back but by a reset.
    fn set_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        self.status |= value & (ACKNOWLEDGE | FAILED);
        if value & DRIVER != 0 && self.is(ACKNOWLEDGE) {
            self.status |= DRIVER;
        }
        let acceptable = self.features & !self.offered() == 0 && self.features & VERSION_1 != 0;
        if value & FEATURES_OK != 0 && self.is(DRIVER) && acceptable {
            self.status |= FEATURES_OK;
        }
        if value & DRIVER_OK != 0 && self.is(FEATURES_OK) && !self.is(DRIVER_OK) && !self.is(FAILED) {
            self.status |= DRIVER_OK;
            if self.activate().is_err() {
                self.interrupt.needs_reset();
            }
        }
    }

    fn activate(&mut self) -> Result<(), Refused> {
        let activation = self.activation(false)?;
        self.device.activate(activation).map_err(|error| self.refuse(&error))
    }

    /// The host cannot start the device: the driver will not hear why, so the log does.
    fn refuse(&self, error: &ActivateError) -> Refused {
        let (device_type, cause) = (self.device.device_type(), error_chain::chain(error));
        log(&format!("a device of type {device_type} did not start; the guest's driver has to reset it: {cause}"));
        Refused
    }

    /// The driver's set-up, checked.
    fn activation(&self, restored: bool) -> Result<Activation, Refused> {
        let event_index = self.features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let queues = self
            .queues
            .iter()
            .enumerate()
            .map(|(index, setup)| match setup.registers.ready {
                false if index >= self.device.required_queues() => setup.unused(),
                _ => setup.build(&self.memory, event_index),
            })
            .collect::<Result<Vec<_>, Refused>>()?;
        let (memory, interrupt) = (self.memory.clone(), self.interrupt.clone());
        Ok(Activation { memory, queues, interrupt, features: self.features, restored })
    }

    fn suspend(&mut self) -> Result<WindowState, WindowStateError> {
        let standing = self.device.suspend();
        // A device that is not active although its driver is content refused to start, and says so in its interrupt.
        let runs = self.is(DRIVER_OK) && !self.interrupt.is_reset_needed();
        if runs && standing.len() != self.queues.len() {
            return Err(WindowStateError::Lost { device_type: self.device.device_type() });
        }
        let position = |queue: &QueueState| (queue.next_avail, queue.next_used);
        Ok(WindowState {
            device_type: self.device.device_type(),
            status: self.status,
            features: self.features,
            device_features_page: self.device_features_page,
            driver_features_page: self.driver_features_page,
            selected_queue: self.selected_queue,
            config_generation: self.config_generation,
            interrupt: self.interrupt.pending(),
            queues: self.queues.iter().map(|queue| queue.registers).collect(),
            positions: runs.then(|| standing.iter().map(position).collect()),
            config: self.device.save_config(),
        })
    }

    fn restore(&mut self, state: &WindowState) -> Result<(), WindowStateError> {
        let device_type = self.device.device_type();
        if state.device_type != device_type {
            return Err(WindowStateError::OtherDevice { theirs: state.device_type, ours: device_type });
        }
        let invalid = WindowStateError::Invalid { device_type };
        let known = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | FAILED;
        // Before that a driver may have asked for anything.
        let negotiated = state.status & (FEATURES_OK | DRIVER_OK) != 0;
        if state.queues.len() != self.queues.len()
            || state.status & !known != 0
            || negotiated && state.features & !self.offered() != 0
            || state.positions.is_some() && state.status & DRIVER_OK == 0
        {
            return Err(invalid);
        }
        self.status = state.status;
        self.features = state.features;
        self.device_features_page = state.device_features_page;
        self.driver_features_page = state.driver_features_page;
        self.selected_queue = state.selected_queue;
        self.config_generation = state.config_generation;
        for (queue, registers) in self.queues.iter_mut().zip(&state.queues) {
            queue.registers = *registers;
        }
        self.device.restore_config(&state.config);
        self.interrupt.restore(state.interrupt);
        let Some(positions) = &state.positions else { return Ok(()) };
        if positions.len() != self.queues.len() {
            return Err(invalid);
        }
        let mut activation = self.activation(true).map_err(|Refused| invalid)?;
        for (active, (available, used)) in activation.queues.iter_mut().zip(positions) {
            active.queue.set_next_avail(*available);
            active.queue.set_next_used(*used);
        }
        self.waiting = Some(activation);
        Ok(())
    }

    fn start(&mut self) -> Result<(), WindowStateError> {
        let Some(activation) = self.waiting.take() else { return Ok(()) };
        let device_type = self.device.device_type();
        self.device.activate(activation).map_err(|source| WindowStateError::Activate { device_type, source })?;
        self.interrupt.raise_again();
        Ok(())
    }

    fn reset(&mut self) {
        self.waiting = None;
        self.device.reset();
        self.interrupt.clear();
        self.status = 0;
        self.features = 0;
        self.device_features_page = 0;
        self.driver_features_page = 0;
        self.selected_queue = 0;
        for queue in &mut self.queues {
            queue.registers = QueueRegisters::default();
            // A notification of before the reset is not one for the next driver. An empty event reads as an error.
            let _ = queue.notify.read();
        }
    }
}

/// The driver's set-up cannot be worked with; it is told by `DEVICE_NEEDS_RESET`, which carries no reason.
struct Refused;

impl QueueSetup {
    /// A queue that the driver does without.
    fn unused(&self) -> Result<ActiveQueue, Refused> {
        let queue = Queue::new(self.max_size).map_err(|_| Refused)?;
        Ok(ActiveQueue { queue, notify: self.notify.try_clone().map_err(|_| Refused)? })
    }

    /// The checks that make a driver's numbers a queue.
    fn build(&self, memory: &Memory, event_index: bool) -> Result<ActiveQueue, Refused> {
        let mut queue = Queue::new(self.max_size).map_err(|_| Refused)?;
        let registers = &self.registers;
        let size = u16::try_from(registers.size).map_err(|_| Refused)?;
        queue.try_set_size(size).map_err(|_| Refused)?;
        queue.try_set_desc_table_address(GuestAddress(registers.descriptors)).map_err(|_| Refused)?;
        queue.try_set_avail_ring_address(GuestAddress(registers.driver_area)).map_err(|_| Refused)?;
        queue.try_set_used_ring_address(GuestAddress(registers.device_area)).map_err(|_| Refused)?;
        queue.set_event_idx(event_index);
        queue.set_ready(registers.ready);
        if !queue.is_valid(memory) {
            return Err(Refused);
        }
        Ok(ActiveQueue { queue, notify: self.notify.try_clone().map_err(|_| Refused)? })
    }
}

/// Bits `32 * page` and up of `value`; pages beyond the second are empty.
fn page(value: u64, page: u32) -> u32 {
    let shifted = value.checked_shr(page.saturating_mul(32)).unwrap_or(0);
    u32::try_from(shifted & 0xffff_ffff).unwrap_or_default()
}

fn set_page(value: &mut u64, page: u32, bits: u32) {
    match page {
        0 => *value = *value & !0xffff_ffff | u64::from(bits),
        1 => *value = *value & 0xffff_ffff | u64::from(bits) << 32,
        _ => {}
    }
}

#[cfg(test)]
mod tests;
