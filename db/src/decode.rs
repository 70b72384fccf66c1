//! Values as they are stored.

use jiff::Timestamp;

use crate::StoreError;

/// A time as it is stored.
pub fn to_ms(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A stored time.
pub fn from_ms(ms: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(ms).map_err(|_| StoreError::Corrupt { what: format!("time {ms}") })
}

/// A stored count.
pub fn count<T: TryFrom<i64>>(value: i64) -> Result<T, StoreError> {
    T::try_from(value).map_err(|_| StoreError::Corrupt { what: format!("number {value}") })
}

/// A stored boolean.
pub fn decode_bool(value: i64) -> Result<bool, StoreError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(StoreError::Corrupt { what: format!("boolean {value}") }),
    }
}

/// A stored value of an enumeration.
pub fn decode_enum<T: std::str::FromStr>(value: &str) -> Result<T, StoreError> {
    value.parse().map_err(|_| StoreError::Corrupt { what: format!("value {value:?}") })
}
