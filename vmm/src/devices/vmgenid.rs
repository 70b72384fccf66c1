//! The generation id: how a guest's kernel learns that it is a clone (Microsoft's "Virtual Machine Generation ID", in
//! Linux `drivers/virt/vmgenid.c`).
//!
//! Two machines that go on from one snapshot have the same random number generator, and would draw the same keys and
//! nonces from it. So there are 16 random bytes at [`layout::GENERATION_ID`], others in every machine that ever ran:
//!
//! * At boot [`VmGenId::write_new`] puts the first ones there before the first instruction.
//! * At restore it puts new ones there while no vCPU runs, and [`VmGenId::notify`] raises the device's interrupt. The
//!   guest's kernel runs the `_EVT` method of its Generic Event Device, which notifies the device `VGEN` (see
//!   [`acpi`](crate::machine::acpi)), whose driver compares the bytes and reseeds the generator with them.
//!
//! The guest is told by an interrupt, so a program can run in it for a moment before its kernel has reacted. Whoever
//! must not draw from the old state has to wait for, or do, a reseeding of its own.

use std::io;

use vm_memory::{Bytes, GuestMemoryError};
use vmm_sys_util::eventfd::EventFd;

use super::virtio::Memory;
use crate::layout;

#[derive(Debug, thiserror::Error)]
pub enum NewIdError {
    #[error("The host's kernel returned no random bytes for the generation id")]
    Random(#[source] io::Error),
    #[error("Cannot write the generation id to guest memory")]
    Write(#[source] GuestMemoryError),
}

pub struct VmGenId {
    line: EventFd,
}

impl VmGenId {
    /// Below those of virtio devices, and nothing's on a PC without a second parallel port.
    pub const GSI: u32 = 5;
    /// Bytes of an id.
    pub const SIZE: usize = 16;

    /// `line` raises [`Self::GSI`].
    pub fn new(line: EventFd) -> Self {
        Self { line }
    }

    /// Gives the machine an id that no machine had before. Not while vCPUs run: they would see it half written.
    ///
    /// # Errors
    /// The host gives no random bytes, or `memory` has no page for the id.
    pub fn write_new(&self, memory: &Memory) -> Result<(), NewIdError> {
        memory.write_slice(&random().map_err(NewIdError::Random)?, layout::GENERATION_ID).map_err(NewIdError::Write)
    }

    /// Tells the guest to look at its id. After a restore that is once the interrupt controllers have their state back,
    /// which would overwrite a pending interrupt.
    pub fn notify(&self) {
        // The counter of an event can only be full after 2^64 - 2 unread writes: nothing to handle.
        let _ = self.line.write(1);
    }
}

fn random() -> io::Result<[u8; VmGenId::SIZE]> {
    let mut bytes = [0; VmGenId::SIZE];
    // SAFETY: pointer and length are those of `bytes`, which nothing else uses meanwhile.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // Up to 256 bytes come all at once or not at all (getrandom(2)).
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::*;
    use crate::memory;

    #[test]
    fn every_id_is_another() {
        let memory = memory::allocate(32).unwrap();
        let device = VmGenId::new(EventFd::new(EFD_NONBLOCK).unwrap());
        let id = || memory.read_obj::<u128>(layout::GENERATION_ID).unwrap();

        device.write_new(&memory).unwrap();
        let first = id();
        device.write_new(&memory).unwrap();

        assert_ne!(first, 0);
        assert_ne!(first, id());
    }

    #[test]
    fn a_new_id_is_told_when_it_is_asked_for_and_not_before() {
        let memory = memory::allocate(32).unwrap();
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        let device = VmGenId::new(line.try_clone().unwrap());

        device.write_new(&memory).unwrap();
        assert_eq!(line.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);

        device.notify();
        assert_eq!(line.read().unwrap(), 1);
    }
}
