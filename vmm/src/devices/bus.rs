//! The two buses, port I/O and MMIO: from an address to the device that answers.
//!
//! A bus is filled while the machine is built and never changes after that, so vCPUs look devices up without a lock; a
//! device that has state guards it itself, so vCPUs meet only when they talk to the same device.

use std::sync::Arc;

/// Something on a bus. Both methods are called by whichever vCPU touched the address, several at once.
///
/// `offset` is below the device's length; an access may reach beyond its end (four bytes at the last port): the device
/// treats what it does not have as absent. Nothing here may panic: the guest chooses every number.
pub trait BusDevice: Send + Sync {
    /// Fills `data`, which comes as all ones: what an absent device reads as.
    fn read(&self, offset: u64, data: &mut [u8]);

    fn write(&self, offset: u64, data: &[u8]);
}

struct Entry {
    base: u64,
    length: u64,
    device: Arc<dyn BusDevice>,
}

/// Devices by address.
#[derive(Default)]
pub struct Bus {
    /// Sorted by base, without overlaps.
    entries: Vec<Entry>,
}

impl Bus {
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `device` at `base..base + length`.
    ///
    /// # Panics
    /// If the range overlaps another's: ranges come from the layout's constants, never from outside.
    pub fn insert(&mut self, base: u64, length: u64, device: Arc<dyn BusDevice>) {
        let position = self.entries.partition_point(|entry| entry.base < base);
        let after_previous = position == 0 || {
            let previous = &self.entries[position - 1];
            previous.base + previous.length <= base
        };
        let before_next = self.entries.get(position).is_none_or(|next| base + length <= next.base);
        assert!(after_previous && before_next, "two devices at {base:#x}");
        self.entries.insert(position, Entry { base, length, device });
    }

    /// Reads as all ones where nothing is.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((device, offset)) = self.find(address) {
            device.read(offset, data);
        }
    }

    /// Writes where nothing is go nowhere.
    pub fn write(&self, address: u64, data: &[u8]) {
        if let Some((device, offset)) = self.find(address) {
            device.write(offset, data);
        }
    }

    fn find(&self, address: u64) -> Option<(&dyn BusDevice, u64)> {
        let position = self.entries.partition_point(|entry| entry.base <= address).checked_sub(1)?;
        let entry = &self.entries[position];
        let offset = address - entry.base;
        (offset < entry.length).then_some((&*entry.device, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<(u64, Vec<u8>)>>);

    impl BusDevice for Recorder {
        fn read(&self, offset: u64, data: &mut [u8]) {
            data[0] = u8::try_from(offset).unwrap();
        }

        fn write(&self, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((offset, data.to_vec()));
        }
    }

    #[test]
    fn an_access_reaches_the_device_at_its_address_only() {
        let low = Arc::new(Recorder::default());
        let high = Arc::new(Recorder::default());
        let mut bus = Bus::new();
        bus.insert(0x200, 0x10, high.clone());
        bus.insert(0x100, 0x10, low.clone());

        for address in [0xff, 0x100, 0x10f, 0x110, 0x1ff, 0x20f, 0x210, u64::MAX] {
            bus.write(address, &[1]);
        }

        assert_eq!(*low.0.lock().unwrap(), [(0, vec![1]), (0xf, vec![1])]);
        assert_eq!(*high.0.lock().unwrap(), [(0xf, vec![1])]);
    }

    #[test]
    fn nothing_reads_as_ones() {
        let mut bus = Bus::new();
        bus.insert(0x100, 1, Arc::new(Recorder::default()));
        let mut data = [0; 4];
        bus.read(0x50, &mut data);
        assert_eq!(data, [0xff; 4]);
        bus.read(0x100, &mut data);
        assert_eq!(data, [0, 0xff, 0xff, 0xff]);
    }

    #[test]
    #[should_panic(expected = "two devices at 0x10f")]
    fn overlaps_are_refused() {
        let mut bus = Bus::new();
        bus.insert(0x100, 0x10, Arc::new(Recorder::default()));
        bus.insert(0x10f, 0x10, Arc::new(Recorder::default()));
    }
}
