//! The device with a driver before it: batch by batch with a socket for a tap ([`queues`], [`hostile`]), and with its thread,
//! real taps and real TCP ([`taps`]).

mod driver;
mod hostile;
mod queues;
mod taps;
