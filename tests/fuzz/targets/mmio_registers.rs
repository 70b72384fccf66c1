//! The registers of virtio-mmio against a hostile driver, and a window's state against a hostile snapshot.
//!
//! The input is a program of register reads and writes, at any offset and width; most values are ones that mean something
//! there. At times the device changes its configuration space, is suspended and goes on in a new window, or a new window is
//! made from whatever bytes say.
//!
//! Beyond the absence of panics, the promises that devices rely on: one is activated only by a driver that went through the
//! handshake, with features from the offer and queues that lie in guest memory, and never twice without a reset. And a
//! restored window reads as the suspended one did.
#![no_main]

use std::sync::{Arc, Mutex, MutexGuard};

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::Input;
use sandpiper_vmm::devices::bus::BusDevice;
use sandpiper_vmm::devices::virtio::mmio::{MmioWindow, WindowState};
use sandpiper_vmm::devices::virtio::{ActivateError, Activation, Interrupt, Memory, VirtioDevice};
use virtio_bindings::virtio_mmio as register;
use virtio_queue::{QueueState, QueueT};
use vm_memory::GuestAddress;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const QUEUE_SIZES: [u16; 3] = [16, 64, 256];
const REQUIRED: usize = 2;
const VERSION_1: u64 = 1 << 32;
const FEATURES: u64 = 1 << 29 | 1 << 5 | 1;
const CONFIG_SIZE: usize = 8;
/// `ACKNOWLEDGE`, `DRIVER`, `FEATURES_OK` and `DRIVER_OK`.
const RUNNING: u32 = 1 | 2 | 8 | 4;

/// What a handshake uses.
const REGISTERS: [u32; 14] = [
    register::VIRTIO_MMIO_STATUS,
    register::VIRTIO_MMIO_DRIVER_FEATURES,
    register::VIRTIO_MMIO_DRIVER_FEATURES_SEL,
    register::VIRTIO_MMIO_QUEUE_SEL,
    register::VIRTIO_MMIO_QUEUE_NUM,
    register::VIRTIO_MMIO_QUEUE_READY,
    register::VIRTIO_MMIO_QUEUE_DESC_LOW,
    register::VIRTIO_MMIO_QUEUE_AVAIL_LOW,
    register::VIRTIO_MMIO_QUEUE_USED_LOW,
    register::VIRTIO_MMIO_QUEUE_USED_HIGH,
    register::VIRTIO_MMIO_QUEUE_NOTIFY,
    register::VIRTIO_MMIO_INTERRUPT_ACK,
    register::VIRTIO_MMIO_DEVICE_FEATURES_SEL,
    register::VIRTIO_MMIO_CONFIG,
];
/// What says how a window stands.
const SHOWN: [u32; 5] = [
    register::VIRTIO_MMIO_STATUS,
    register::VIRTIO_MMIO_QUEUE_READY,
    register::VIRTIO_MMIO_DEVICE_FEATURES,
    register::VIRTIO_MMIO_INTERRUPT_STATUS,
    register::VIRTIO_MMIO_CONFIG_GENERATION,
];

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1_0000), (GuestAddress(0x2_0000), 0x1000)]).expect("memory");
    let mut machine = Machine::new(&memory);
    while !input.is_empty() {
        match input.byte() % 16 {
            0..=8 => machine.write(&mut input),
            9 => machine.reconfigure(),
            10 => machine.handshake(&mut input),
            11 => machine.set_up_queue(&mut input),
            12 => machine.read(&mut input),
            13 => machine.odd_access(&mut input),
            14 => machine = machine.restored(),
            _ => machine = machine.made_up(&mut input),
        }
    }
    machine.window.stop();
    assert!(!machine.device().active, "a stopped device is active");
}

/// A device that notes what happens to it, and whether that may.
struct Device(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    active: bool,
    config: [u8; CONFIG_SIZE],
    queues: Vec<QueueState>,
}

impl Device {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().expect("nobody panicked")
    }
}

impl VirtioDevice for Device {
    fn device_type(&self) -> u32 {
        42
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn required_queues(&self) -> usize {
        REQUIRED
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.noted().config;
        let rest = usize::try_from(offset).ok().and_then(|offset| config.get(offset..)).unwrap_or_default();
        data.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let mut noted = self.noted();
        let rest = usize::try_from(offset).ok().and_then(|offset| noted.config.get_mut(offset..)).unwrap_or_default();
        rest.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    }

    fn save_config(&self) -> Vec<u8> {
        self.noted().config.into()
    }

    fn restore_config(&mut self, saved: &[u8]) {
        if let Ok(config) = saved.try_into() {
            self.noted().config = config;
        }
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let mut noted = self.noted();
        assert!(!noted.active, "activated twice");
        assert_eq!(activation.features & !(FEATURES | VERSION_1), 0, "features that are not on offer");
        assert_eq!(activation.queues.len(), QUEUE_SIZES.len());
        for (index, (active, max)) in activation.queues.iter().zip(QUEUE_SIZES).enumerate() {
            let queue = &active.queue;
            assert!(queue.ready() || index >= REQUIRED, "queue {index} is not set up");
            assert!(!queue.ready() || queue.is_valid(&activation.memory), "queue {index} is not in memory");
            assert!(queue.size() <= max, "queue {index} is too large");
        }
        noted.active = true;
        noted.queues = activation.queues.iter().map(|active| active.queue.state()).collect();
        Ok(())
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        self.noted().queues.clone()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        Ok(())
    }

    fn reset(&mut self) {
        let mut noted = self.noted();
        (noted.active, noted.queues) = (false, Vec::new());
    }
}

struct Machine<'a> {
    memory: &'a Memory,
    window: MmioWindow<Device>,
    noted: Arc<Mutex<Noted>>,
    /// The window was made by a snapshot that may say that a device runs which does not: that is the guest's own loss.
    made_up: bool,
}

impl<'a> Machine<'a> {
    fn new(memory: &'a Memory) -> Self {
        let event = || EventFd::new(EFD_NONBLOCK).expect("an event");
        let noted = Arc::default();
        let notify = QUEUE_SIZES.iter().map(|_| event()).collect();
        let window = MmioWindow::new(Device(Arc::clone(&noted)), memory.clone(), Interrupt::new(event()), notify);
        Self { memory, window, noted, made_up: false }
    }

    fn device(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().expect("nobody panicked")
    }

    fn get(&self, register: u32) -> u32 {
        let mut data = [0xff; 4];
        self.window.read(register.into(), &mut data);
        u32::from_le_bytes(data)
    }

    fn set(&self, register: u32, value: u32) {
        self.window.write(register.into(), &value.to_le_bytes());
        self.check();
    }

    /// The driver is told that the device runs if, and only if, it does, or has said that it cannot.
    fn check(&self) {
        let status = self.get(register::VIRTIO_MMIO_STATUS);
        let (active, needs_reset) = (self.device().active, status & 64 != 0);
        assert!(!active || status & RUNNING == RUNNING, "active with status {status:#x}");
        assert!(active || needs_reset || self.made_up || status & 4 == 0, "not active with status {status:#x}");
    }

    /// One register of the handshake, with a value that fits or another.
    fn write(&self, input: &mut Input<'_>) {
        let register = input.choose(&REGISTERS);
        let value = match input.byte() {
            255 => u32::from_le_bytes(input.number()),
            high @ 128.. => u32::from(high & 0x7f) << 9,
            low => low.into(),
        };
        self.set(register, value);
    }

    /// What the device does of itself: the driver is told, if it is there.
    fn reconfigure(&self) {
        let before = self.get(register::VIRTIO_MMIO_CONFIG_GENERATION);
        self.window.reconfigure(|_| Ok::<_, ()>(())).expect("nothing refuses");
        assert_eq!(self.get(register::VIRTIO_MMIO_CONFIG_GENERATION), before.wrapping_add(1));
        let told = self.get(register::VIRTIO_MMIO_INTERRUPT_STATUS) & 2 != 0;
        assert!(told || self.get(register::VIRTIO_MMIO_STATUS) & 4 == 0, "a driver that runs was not told");
        self.check();
    }

    /// Up to the queues.
    fn handshake(&self, input: &mut Input<'_>) {
        let features = [u32::from(input.byte()) | u32::from(input.byte()) << 22, u32::from(input.byte())];
        self.set(register::VIRTIO_MMIO_STATUS, 1);
        self.set(register::VIRTIO_MMIO_STATUS, 3);
        for (page, features) in (0..).zip(features) {
            self.set(register::VIRTIO_MMIO_DRIVER_FEATURES_SEL, page);
            self.set(register::VIRTIO_MMIO_DRIVER_FEATURES, features);
        }
        self.set(register::VIRTIO_MMIO_STATUS, 11);
    }

    fn set_up_queue(&self, input: &mut Input<'_>) {
        let (index, size) = (u32::from(input.byte() % 4), 1 << (input.byte() % 10));
        self.set(register::VIRTIO_MMIO_QUEUE_SEL, index);
        self.set(register::VIRTIO_MMIO_QUEUE_NUM, size);
        self.set(register::VIRTIO_MMIO_QUEUE_DESC_LOW, u32::from(input.byte()) << 8);
        self.set(register::VIRTIO_MMIO_QUEUE_AVAIL_LOW, u32::from(input.byte()) << 8);
        self.set(register::VIRTIO_MMIO_QUEUE_USED_LOW, u32::from(input.byte()) << 8);
        self.set(register::VIRTIO_MMIO_QUEUE_READY, 1);
    }

    fn read(&self, input: &mut Input<'_>) {
        self.get(input.choose(&REGISTERS));
        self.get(u32::from(input.byte()) * 4);
    }

    /// At any offset, of any width.
    fn odd_access(&self, input: &mut Input<'_>) {
        let offset = u64::from(u16::from_le_bytes(input.number()) % 0x1100);
        let mut data = input.number::<8>();
        let length = usize::from(input.byte() % 9);
        self.window.read(offset, &mut data[..length]);
        self.window.write(offset, &data[..length]);
        self.check();
    }

    fn shown(&self) -> [u32; SHOWN.len()] {
        SHOWN.map(|register| self.get(register))
    }

    /// The device in another process.
    fn restored(self) -> Self {
        let Ok(state) = self.window.suspend() else {
            assert!(self.made_up, "the device is lost");
            return self;
        };
        let next = Self { made_up: self.made_up, ..Self::new(self.memory) };
        next.window.restore(&state).expect("its own state");
        assert_eq!(next.shown(), self.shown());
        let again = postcard::to_stdvec(&next.window.suspend().ok()).expect("a state");
        next.window.start().expect("it starts as the first did");
        if !self.device().active {
            assert_eq!(again, postcard::to_stdvec(&Some(state)).expect("a state"));
        }
        next
    }

    /// A window from bytes; as it was, if they make no sense.
    fn made_up(self, input: &mut Input<'_>) -> Self {
        let length = usize::from(input.byte());
        let Ok(state) = postcard::from_bytes::<WindowState>(input.take(length)) else { return self };
        let next = Self::new(self.memory);
        match next.window.restore(&state).is_ok() && next.window.start().is_ok() {
            true => Self { made_up: true, ..next },
            false => self,
        }
    }
}
