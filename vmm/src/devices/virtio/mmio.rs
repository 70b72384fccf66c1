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
//! that it does not know, or of another width, arrives as a write, and a known number is served all the same.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE as ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER as DRIVER,
    VIRTIO_CONFIG_S_DRIVER_OK as DRIVER_OK, VIRTIO_CONFIG_S_FAILED as FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK as FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET as NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as register;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Activation, ActiveQueue, Interrupt, Memory, VirtioDevice};
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
pub struct MmioWindow(Mutex<Window>);

impl MmioWindow {
    /// `interrupt` is the device's line.
    pub fn new(device: Box<dyn VirtioDevice>, memory: Memory, interrupt: Interrupt) -> io::Result<Self> {
        let queues = device
            .queue_sizes()
            .iter()
            .map(|&max_size| {
                Ok(QueueSetup { max_size, notify: EventFd::new(EFD_NONBLOCK)?, registers: QueueRegisters::default() })
            })
            .collect::<io::Result<_>>()?;
        let window = Window {
            device,
            memory,
            interrupt,
            queues,
            status: 0,
            features: 0,
            device_features_page: 0,
            driver_features_page: 0,
            selected_queue: 0,
            config_generation: 0,
        };
        Ok(Self(Mutex::new(window)))
    }

    /// The events that the queues' notifications raise, in the queues' order.
    pub fn notify_events(&self) -> io::Result<Vec<EventFd>> {
        self.lock().queues.iter().map(|queue| queue.notify.try_clone()).collect()
    }

    /// Stops the device: when this returns it touches neither guest memory nor what is behind it.
    pub fn stop(&self) {
        self.lock().reset();
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BusDevice for MmioWindow {
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

struct Window {
    device: Box<dyn VirtioDevice>,
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
}

struct QueueSetup {
    max_size: u16,
    notify: EventFd,
    registers: QueueRegisters,
}

/// As the driver wrote them, unchecked.
#[derive(Default)]
struct QueueRegisters {
    size: u32,
    ready: bool,
    descriptors: u64,
    driver_area: u64,
    device_area: u64,
}

impl Window {
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
        let event_index = self.features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let queues = self
            .queues
            .iter()
            .map(|setup| setup.build(&self.memory, event_index))
            .collect::<Result<Vec<_>, Refused>>()?;
        let activation = Activation {
            memory: self.memory.clone(),
            queues,
            interrupt: self.interrupt.clone(),
            features: self.features,
        };
        self.device.activate(activation).map_err(|_| Refused)
    }

    fn reset(&mut self) {
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
