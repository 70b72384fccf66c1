//! Everything that a vCPU is between two instructions: read from KVM, and given to a new vCPU.
//!
//! The order of reading and of setting is KVM's: a local APIC that is woken moves its vCPU out of a halt, so the run state
//! comes first when reading. When setting, the features come first ([`set_features`](crate::machine::cpu::set_features)), because
//! KVM answers according to them, and pending events last, because other calls drop them.

use kvm_bindings::{
    Msrs, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs,
    kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};

/// Registers that must be set in this order, after all others: the deadline of a timer counts in the time stamp counter.
const TIME_STAMP_COUNTER: u32 = 0x10;
const TSC_DEADLINE: u32 = 0x6e0;

/// Differences of clock rates that a guest does not notice, in parts per million.
const TSC_TOLERANCE_PPM: u64 = 250;

/// Model-specific registers per call.
const MSR_CHUNK: usize = 128;

/// Why a vCPU could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum VcpuStateError {
    #[error("KVM does not report the {what} of a vCPU")]
    Get {
        what: &'static str,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM rejects the {what} of a vCPU")]
    Set {
        what: &'static str,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM rejects the value of model-specific register {index:#x}")]
    Msr { index: u32 },
    #[error("A vCPU has too many registers for KVM")]
    TooMany,
    #[error("The guest's time stamp counter runs at {theirs} kHz, this host's at {ours}, and KVM cannot scale it")]
    TscRate { theirs: u32, ours: u32 },
}

#[derive(Serialize, Deserialize)]
pub(crate) struct VcpuState {
    mp_state: kvm_mp_state,
    registers: kvm_regs,
    special_registers: kvm_sregs,
    /// All of it: without features that must be asked for (AMX), which no guest here has, it fits into 4 KiB.
    extended_state: kvm_xsave,
    extended_controls: kvm_xcrs,
    debug_registers: kvm_debugregs,
    local_apic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    tsc_khz: u32,
}

fn get<T>(what: &'static str, result: Result<T, kvm_ioctls::Error>) -> Result<T, VcpuStateError> {
    result.map_err(|source| VcpuStateError::Get { what, source })
}

fn set(what: &'static str, result: Result<(), kvm_ioctls::Error>) -> Result<(), VcpuStateError> {
    result.map_err(|source| VcpuStateError::Set { what, source })
}

impl VcpuState {
    /// Reads a vCPU that stands still. `msrs` are the registers that this KVM knows.
    pub(crate) fn read(vcpu: &VcpuFd, msrs: &[u32]) -> Result<Self, VcpuStateError> {
        Ok(Self {
            mp_state: get("run state", vcpu.get_mp_state())?,
            registers: get("registers", vcpu.get_regs())?,
            special_registers: get("special registers", vcpu.get_sregs())?,
            extended_state: get("extended state", vcpu.get_xsave())?,
            extended_controls: get("extended controls", vcpu.get_xcrs())?,
            debug_registers: get("debug registers", vcpu.get_debug_regs())?,
            local_apic: get("local APIC", vcpu.get_lapic())?,
            tsc_khz: get("clock rate", vcpu.get_tsc_khz())?,
            msrs: read_msrs(vcpu, msrs)?,
            events: get("pending events", vcpu.get_vcpu_events())?,
        })
    }

    /// Makes a vCPU that has its features and has not run yet this one.
    pub(crate) fn write(&self, vcpu: &VcpuFd) -> Result<(), VcpuStateError> {
        self.set_tsc_rate(vcpu)?;
        set("run state", vcpu.set_mp_state(self.mp_state))?;
        set("registers", vcpu.set_regs(&self.registers))?;
        set("special registers", vcpu.set_sregs(&self.special_registers))?;
        // SAFETY: KVM reads as many bytes as its extended state has. That is more than `kvm_xsave` only for features that a
        // process must ask the kernel for, and this one never does.
        set("extended state", unsafe { vcpu.set_xsave(&self.extended_state) })?;
        // KVM tells of none where the host has no XSAVE, and then refuses even to set none.
        if self.extended_controls.nr_xcrs > 0 {
            set("extended controls", vcpu.set_xcrs(&self.extended_controls))?;
        }
        set("debug registers", vcpu.set_debug_regs(&self.debug_registers))?;
        set("local APIC", vcpu.set_lapic(&self.local_apic))?;
        self.write_msrs(vcpu)?;
        set("pending events", vcpu.set_vcpu_events(&self.events))
    }

    fn set_tsc_rate(&self, vcpu: &VcpuFd) -> Result<(), VcpuStateError> {
        let (theirs, ours) = (self.tsc_khz, get("clock rate", vcpu.get_tsc_khz())?);
        let difference = u64::from(theirs.abs_diff(ours)) * 1_000_000;
        if difference <= u64::from(ours) * TSC_TOLERANCE_PPM || vcpu.set_tsc_khz(theirs).is_ok() {
            return Ok(());
        }
        Err(VcpuStateError::TscRate { theirs, ours })
    }

    fn write_msrs(&self, vcpu: &VcpuFd) -> Result<(), VcpuStateError> {
        let rank = |entry: &kvm_msr_entry| match entry.index {
            TIME_STAMP_COUNTER => 1,
            TSC_DEADLINE => 2,
            _ => 0,
        };
        let mut entries = self.msrs.clone();
        entries.sort_by_key(rank);
        let counter = entries.iter().find(|entry| entry.index == TIME_STAMP_COUNTER).map_or(0, |entry| entry.data);
        for entry in entries.iter_mut().filter(|entry| entry.index == TSC_DEADLINE && entry.data == 0) {
            // None armed; or it has expired, and its interrupt is nowhere in what KVM tells. One interrupt too many is
            // nothing to a guest, one too few stops its clock.
            entry.data = counter;
        }
        let mut rest = &entries[..];
        while !rest.is_empty() {
            let chunk = &rest[..rest.len().min(MSR_CHUNK)];
            let msrs = Msrs::from_entries(chunk).map_err(|_| VcpuStateError::TooMany)?;
            let taken = get("model-specific registers", vcpu.set_msrs(&msrs))?;
            rest = match chunk.get(taken) {
                None => &rest[chunk.len()..],
                // Some can only be read; that is fine as long as they say what they said.
                Some(refused) if read_msrs(vcpu, &[refused.index])?.iter().all(|now| now.data == refused.data) => {
                    &rest[taken + 1..]
                }
                Some(refused) => return Err(VcpuStateError::Msr { index: refused.index }),
            };
        }
        Ok(())
    }
}

/// Registers that KVM saves but does not list (`KVM_GET_MSR_INDEX_LIST`): memory types, and the banks of machine checks. None if
/// it does not tell.
pub(crate) fn unlisted_msrs(vcpu: &VcpuFd) -> Vec<u32> {
    const IA32_MCG_CAP: u32 = 0x179;
    const IA32_MC0_CTL: u32 = 0x400;
    const REGISTERS_PER_BANK: u32 = 4;
    let memory_types = [0x200..0x210, 0x250..0x251, 0x258..0x25a, 0x268..0x270, 0x2ff..0x300];
    let capability = read_msrs(vcpu, &[IA32_MCG_CAP]).unwrap_or_default();
    let banks = capability.first().map_or(0, |entry| u32::try_from(entry.data & 0xff).unwrap_or(0));
    let checks = IA32_MC0_CTL..IA32_MC0_CTL + REGISTERS_PER_BANK * banks;
    let candidates: Vec<u32> = memory_types.into_iter().chain([checks]).flatten().collect();
    read_msrs(vcpu, &candidates).unwrap_or_default().into_iter().map(|entry| entry.index).collect()
}

/// The values of those of `indices` that this vCPU has.
fn read_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, VcpuStateError> {
    let mut found = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let chunk = &rest[..rest.len().min(MSR_CHUNK)];
        let entries: Vec<_> = chunk.iter().map(|&index| kvm_msr_entry { index, ..Default::default() }).collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| VcpuStateError::TooMany)?;
        let read = get("model-specific registers", vcpu.get_msrs(&mut msrs))?;
        found.extend_from_slice(&msrs.as_slice()[..read.min(chunk.len())]);
        // KVM stops at one that this vCPU does not have.
        rest = &rest[if read < chunk.len() { read + 1 } else { chunk.len() }..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_ioctls::{Kvm, VmFd};
    use sandpiper_skip::skipped;

    use crate::machine::cpu;

    const MTRR_BASE: u32 = 0x200;
    const MTRR_MASK: u32 = 0x201;
    const MC0_STATUS: u32 = 0x401;

    /// A vCPU with its features, as a machine prepares it.
    fn vcpu(kvm: &Kvm) -> (VmFd, VcpuFd) {
        let vm = kvm.create_vm().unwrap();
        vm.create_irq_chip().unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        cpu::set_features(&vcpu, 0, 1, &cpu::supported(kvm).unwrap()).unwrap();
        (vm, vcpu)
    }

    #[test]
    fn memory_types_and_machine_checks_are_saved_and_restored() {
        let Ok(kvm) = Kvm::new() else { return skipped("the state of vCPUs", "there is no /dev/kvm") };
        let (_vm, before) = vcpu(&kvm);
        let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
        // Uncached from 3 GiB on; a corrected error.
        let ours = [entry(MTRR_BASE, 0xc000_0000), entry(MTRR_MASK, 0xf_c000_0800), entry(MC0_STATUS, 1 << 63 | 0x9f)];
        let taken = before.set_msrs(&Msrs::from_entries(&ours).unwrap()).unwrap();
        if taken < ours.len() {
            return skipped("memory types of vCPUs", format!("KVM refuses register {:#x}", ours[taken].index));
        }

        let mut msrs = kvm.get_msr_index_list().unwrap().as_slice().to_vec();
        msrs.extend(unlisted_msrs(&before));
        let state = VcpuState::read(&before, &msrs).unwrap();
        let (_vm, after) = vcpu(&kvm);
        state.write(&after).unwrap();

        let read = read_msrs(&after, &ours.map(|entry| entry.index)).unwrap();
        assert_eq!(read.iter().map(|entry| entry.data).collect::<Vec<_>>(), ours.map(|entry| entry.data));
    }
}
