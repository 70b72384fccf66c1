//! A driver's side of the transport, well behaved and not.

use super::*;
use crate::devices::virtio::ActivateError;
use crate::devices::virtio::driver_line::DriverLine;
use std::sync::Arc;
use vmm_sys_util::eventfd::EFD_NONBLOCK;

const RING_FEATURE: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

/// What happened to the device, for the test to look at.
#[derive(Default)]
struct Log {
    activations: Vec<(u64, Vec<Queue>)>,
    resets: usize,
    config: Vec<(u64, Vec<u8>)>,
    notified: usize,
}

struct Probe(Arc<Mutex<Log>>);

impl VirtioDevice for Probe {
    fn device_type(&self) -> u32 {
        42
    }

    fn queue_sizes(&self) -> &[u16] {
        &[16, 64]
    }

    fn features(&self) -> u64 {
        RING_FEATURE | 1
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in (offset..).zip(data) {
            *byte = u8::try_from(index).unwrap_or(0);
        }
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.0.lock().unwrap().config.push((offset, data.to_vec()));
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let queues = activation.queues.into_iter().map(|active| active.queue).collect();
        self.0.lock().unwrap().activations.push((activation.features, queues));
        Ok(())
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        let log = self.0.lock().unwrap();
        log.activations.last().map_or_else(Vec::new, |(_, queues)| queues.iter().map(Queue::state).collect())
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        Ok(())
    }

    fn notified(&mut self) -> Result<(), ActivateError> {
        self.0.lock().unwrap().notified += 1;
        Ok(())
    }

    fn reset(&mut self) {
        self.0.lock().unwrap().resets += 1;
    }
}

struct Driver {
    window: MmioWindow<Probe>,
    log: Arc<Mutex<Log>>,
    events: Vec<EventFd>,
    line: DriverLine,
}

impl Driver {
    fn new() -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1_0000)]).unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let line = DriverLine::new();
        let events: Vec<_> = (0..2).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect();
        let notify = events.iter().map(|event| event.try_clone().unwrap()).collect();
        let window = MmioWindow::new(Probe(Arc::clone(&log)), memory, line.interrupt(), notify);
        Self { window, log, events, line }
    }

    fn read(&self, register: u32) -> u32 {
        let mut data = [0xff; 4];
        self.window.read(u64::from(register), &mut data);
        u32::from_le_bytes(data)
    }

    fn write(&self, register: u32, value: u32) {
        self.window.write(u64::from(register), &value.to_le_bytes());
    }

    fn status(&self) -> u32 {
        self.read(register::VIRTIO_MMIO_STATUS)
    }

    fn accept(&self, features: u64) {
        self.write(register::VIRTIO_MMIO_STATUS, ACKNOWLEDGE);
        self.write(register::VIRTIO_MMIO_STATUS, ACKNOWLEDGE | DRIVER);
        for half in 0..2 {
            self.write(register::VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
            self.write(register::VIRTIO_MMIO_DRIVER_FEATURES, page(features, half));
        }
        self.write(register::VIRTIO_MMIO_STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    }

    fn set_up_queue(&self, index: u32, size: u32, descriptors: u32) {
        self.write(register::VIRTIO_MMIO_QUEUE_SEL, index);
        self.write(register::VIRTIO_MMIO_QUEUE_NUM, size);
        self.write(register::VIRTIO_MMIO_QUEUE_DESC_LOW, descriptors);
        self.write(register::VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x2000 + index * 0x1000);
        self.write(register::VIRTIO_MMIO_QUEUE_USED_LOW, 0x4000 + index * 0x1000);
        self.write(register::VIRTIO_MMIO_QUEUE_READY, 1);
    }

    fn drive(&self) {
        self.write(register::VIRTIO_MMIO_STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    }
}

#[test]
fn a_driver_that_follows_the_handshake_gets_a_running_device() {
    let driver = Driver::new();
    assert_eq!(driver.read(register::VIRTIO_MMIO_MAGIC_VALUE), u32::from_le_bytes(*b"virt"));
    assert_eq!(driver.read(register::VIRTIO_MMIO_DEVICE_ID), 42);
    driver.write(register::VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
    assert_eq!(driver.read(register::VIRTIO_MMIO_DEVICE_FEATURES), 1);

    driver.accept(VERSION_1 | RING_FEATURE);
    driver.set_up_queue(0, 16, 0x1000);
    assert_eq!(driver.read(register::VIRTIO_MMIO_QUEUE_NUM_MAX), 16);
    driver.set_up_queue(1, 32, 0x6000);
    driver.drive();

    assert_eq!(driver.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    let log = driver.log.lock().unwrap();
    let (features, queues) = &log.activations[0];
    assert_eq!(*features, VERSION_1 | RING_FEATURE);
    assert_eq!((queues[0].size(), queues[1].size()), (16, 32));
    assert_eq!(queues[1].desc_table(), 0x6000);
    assert!(queues[0].event_idx_enabled());
}

#[test]
fn features_that_were_not_offered_or_lack_version_1_are_refused() {
    for features in [VERSION_1 | 2, RING_FEATURE, 0, u64::MAX] {
        let driver = Driver::new();
        driver.accept(features);
        assert_eq!(driver.status(), ACKNOWLEDGE | DRIVER, "{features:#x}");
        driver.drive();
        assert!(driver.log.lock().unwrap().activations.is_empty());
    }
}

#[test]
fn a_queue_that_cannot_be_one_asks_for_a_reset_and_a_reset_helps() {
    for (size, descriptors) in [(0, 0x1000), (3, 0x1000), (32, 0x1000), (0x1_0010, 0x1000), (16, 0x1001), (16, 0xff80)]
    {
        let driver = Driver::new();
        driver.accept(VERSION_1);
        driver.set_up_queue(1, 16, 0x1000);
        driver.set_up_queue(0, size, descriptors);
        driver.drive();
        assert_eq!(driver.status() & NEEDS_RESET, NEEDS_RESET, "{size} at {descriptors:#x}");
        assert!(driver.log.lock().unwrap().activations.is_empty());

        driver.write(register::VIRTIO_MMIO_STATUS, 0);
        assert_eq!(driver.status(), 0);
        assert_eq!(driver.read(register::VIRTIO_MMIO_INTERRUPT_STATUS), 0);
        driver.accept(VERSION_1);
        driver.set_up_queue(0, 16, 0x1000);
        driver.set_up_queue(1, 16, 0x6000);
        driver.drive();
        assert_eq!(driver.log.lock().unwrap().activations.len(), 1);
    }
}

#[test]
fn a_queue_that_is_not_ready_asks_for_a_reset() {
    let driver = Driver::new();
    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.drive();
    assert_eq!(driver.status() & NEEDS_RESET, NEEDS_RESET);
}

#[test]
fn a_restored_window_has_the_registers_and_queues_that_it_had() {
    let driver = Driver::new();
    driver.accept(VERSION_1 | RING_FEATURE);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 32, 0x6000);
    driver.drive();
    let state = driver.window.suspend().unwrap();

    let restored = Driver::new();
    restored.window.restore(&state).unwrap();
    assert!(restored.log.lock().unwrap().activations.is_empty());
    restored.window.start().unwrap();

    assert_eq!(restored.window.suspend().unwrap(), state);
    assert_eq!(restored.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    assert_eq!(restored.log.lock().unwrap().activations.len(), 1);

    let fresh = Driver::new();
    fresh.window.restore(&Driver::new().window.suspend().unwrap()).unwrap();
    fresh.window.start().unwrap();
    assert!(fresh.log.lock().unwrap().activations.is_empty(), "it did not run, and does not");
}

#[test]
fn an_interrupt_that_its_driver_has_not_answered_is_raised_again_by_a_restored_device_and_no_other() {
    let driver = Driver::new();
    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 32, 0x6000);
    driver.drive();
    let answered = driver.window.suspend().unwrap();
    driver.line.interrupt().used_buffer();
    let unanswered = driver.window.suspend().unwrap();

    for (state, raised) in [(answered, 0), (unanswered, 1)] {
        let restored = Driver::new();
        restored.window.restore(&state).unwrap();
        assert!(!restored.line.lower(), "the guest does not run yet");
        restored.window.start().unwrap();
        assert_eq!(u32::from(restored.line.lower()), raised);
        assert_eq!(restored.read(register::VIRTIO_MMIO_INTERRUPT_STATUS), raised);
    }
}

#[test]
fn a_driver_that_asked_for_what_is_not_on_offer_is_restored_and_refused_as_before() {
    let driver = Driver::new();
    driver.accept(VERSION_1 | 2);
    let state = driver.window.suspend().unwrap();
    let restored = Driver::new();

    restored.window.restore(&state).unwrap();
    restored.drive();

    assert_eq!(restored.status(), ACKNOWLEDGE | DRIVER);
    assert!(restored.log.lock().unwrap().activations.is_empty());
}

#[test]
fn a_state_that_makes_no_sense_is_refused() {
    let driver = Driver::new();
    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 32, 0x6000);
    driver.drive();
    let good = driver.window.suspend().unwrap();
    let changes: [fn(&mut WindowState); 7] = [
        |state| state.device_type = 1,
        |state| state.status = 1 << 31,
        |state| state.features = u64::MAX,
        |state| state.queues.truncate(1),
        |state| state.positions = Some(vec![(0, 0)]),
        |state| state.queues[0].descriptors = u64::MAX,
        |state| state.status = 0,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        Driver::new().window.restore(&bad).expect_err(&format!("change {index}"));
    }
}

#[test]
fn registers_are_deaf_outside_their_phase() {
    let driver = Driver::new();
    driver.set_up_queue(0, 16, 0x1000);
    assert_eq!(driver.read(register::VIRTIO_MMIO_QUEUE_READY), 0, "before FEATURES_OK");
    driver.window.write(u64::from(register::VIRTIO_MMIO_CONFIG), &[1]);
    assert!(driver.log.lock().unwrap().config.is_empty(), "before DRIVER");

    driver.accept(VERSION_1);
    driver.write(register::VIRTIO_MMIO_DRIVER_FEATURES, u32::MAX);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 16, 0x6000);
    driver.drive();
    driver.write(register::VIRTIO_MMIO_QUEUE_READY, 0);
    driver.drive();

    assert_eq!(driver.read(register::VIRTIO_MMIO_QUEUE_READY), 1);
    let log = driver.log.lock().unwrap();
    assert_eq!(log.activations.len(), 1, "activated once");
    assert_eq!(log.activations[0].0, VERSION_1);
}

#[test]
fn config_space_takes_any_width_and_registers_only_theirs() {
    let driver = Driver::new();
    let mut data = [0xff; 8];
    driver.window.read(u64::from(register::VIRTIO_MMIO_CONFIG) + 2, &mut data);
    assert_eq!(data, [2, 3, 4, 5, 6, 7, 8, 9]);
    let mut narrow = [0xff; 2];
    driver.window.read(0, &mut narrow);
    assert_eq!(narrow, [0xff; 2]);
    driver.window.write(u64::from(register::VIRTIO_MMIO_STATUS), &[1]);
    assert_eq!(driver.status(), 0);
}

#[test]
fn a_notification_that_arrives_as_a_write_is_served_once_the_device_runs() {
    let driver = Driver::new();
    let events = &driver.events;
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 1);
    assert!(events[1].read().is_err());
    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 16, 0x6000);
    driver.drive();
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 1);
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 2);
    assert_eq!(events[1].read().unwrap(), 1);
    assert!(events[0].read().is_err());
}

#[test]
fn a_change_of_configuration_is_a_new_generation_and_an_interrupt_for_a_driver_that_is_there() {
    let driver = Driver::new();
    let generation = || driver.read(register::VIRTIO_MMIO_CONFIG_GENERATION);
    let pending = || driver.read(register::VIRTIO_MMIO_INTERRUPT_STATUS);
    driver.window.reconfigure(|_| Ok::<_, ()>(())).unwrap();
    assert_eq!((generation(), pending()), (1, 0), "nobody is there yet");

    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 64, 0x6000);
    driver.drive();
    driver.window.reconfigure(|_| Ok::<_, ()>(())).unwrap();
    assert_eq!((generation(), pending()), (2, 2));
    driver.window.reconfigure(|_| Err(())).unwrap_err();
    assert_eq!(generation(), 2, "nothing has changed");
}

#[test]
fn a_notification_that_comes_as_a_write_raises_the_event_and_reaches_the_device() {
    let driver = Driver::new();
    driver.accept(VERSION_1);
    driver.set_up_queue(0, 16, 0x1000);
    driver.set_up_queue(1, 64, 0x6000);
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 1);
    assert_eq!(driver.log.lock().unwrap().notified, 0, "it does not run yet");
    driver.drive();
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 1);
    driver.write(register::VIRTIO_MMIO_QUEUE_NOTIFY, 2);
    assert_eq!(driver.log.lock().unwrap().notified, 1);
    assert_eq!(driver.events[1].read().unwrap(), 1);
}
