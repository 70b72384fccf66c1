//! What teams are billed for: how much of what ran and was stored falls into which bucket of time, and what that costs. Whole
//! numbers throughout; nothing here knows a database.
//!
//! ```text
//!   intervals ──split at the bounds──▶ [buckets] of [`Consumption`] ──▶ [decimal] text
//!   samples of storage, traffic ────▶                              ──[prices]──▶ cost
//! ```
//!
//! The buckets of a range have all of it between them: the sums of the buckets are the totals, to the millisecond, the byte
//! and the last digit of the cost.

pub mod buckets;
pub mod decimal;
pub mod prices;

use std::ops::{Add, AddAssign};

/// Milliseconds of an hour.
pub const HOUR_MS: i64 = 3_600_000;

/// What was used, in the smallest units there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consumption {
    /// vCPUs times milliseconds.
    pub cpu_ms: u128,
    /// MiB of memory times milliseconds.
    pub memory_mb_ms: u128,
    /// Bytes of the host's disk times hours.
    pub storage_byte_hours: u128,
    /// Bytes that left sandboxes, and that came to them.
    pub egress_bytes: u128,
    pub ingress_bytes: u128,
}

impl Consumption {
    /// vCPU seconds, exactly.
    pub fn cpu_seconds(&self) -> String {
        decimal::text(self.cpu_ms, 1000)
    }

    /// GiB seconds of memory, exactly.
    pub fn memory_gib_seconds(&self) -> String {
        decimal::text(self.memory_mb_ms, 1024 * 1000)
    }

    /// GiB hours of storage, exactly.
    pub fn storage_gib_hours(&self) -> String {
        decimal::text(self.storage_byte_hours, 1 << 30)
    }
}

impl Add for Consumption {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms + other.cpu_ms,
            memory_mb_ms: self.memory_mb_ms + other.memory_mb_ms,
            storage_byte_hours: self.storage_byte_hours + other.storage_byte_hours,
            egress_bytes: self.egress_bytes + other.egress_bytes,
            ingress_bytes: self.ingress_bytes + other.ingress_bytes,
        }
    }
}

impl AddAssign for Consumption {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
