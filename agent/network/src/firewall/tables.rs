//! Whether a table is there: asked of the kernel itself, which takes microseconds, so that it can be asked often.

use std::io;

use super::batch::{GET_TABLE, INET, NEW_TABLE, REQUEST};
use super::socket::{ERROR, Socket};
use super::wire::{Head, Writer};
use crate::netns::Netns;

/// `NFTA_TABLE_NAME` of `linux/netfilter/nf_tables.h`.
const NAME: u16 = 1;

/// The tables of a namespace, which this keeps alive.
#[derive(Debug)]
pub(crate) struct Tables(Socket);

impl Tables {
    /// Those of the namespace that the calling thread is in. Blocks, briefly.
    pub(crate) fn here() -> io::Result<Self> {
        Ok(Self(Socket::open(&Netns::current()?)?))
    }

    /// Whether there is an `inet` table of this name.
    ///
    /// # Errors
    /// The kernel did not tell.
    pub(crate) fn has(&self, name: &str) -> io::Result<bool> {
        let mut writer = Writer::default();
        writer.message(&Head { kind: GET_TABLE, flags: REQUEST, family: INET, resource: 0 });
        writer.text(NAME, name);
        self.0.ask(writer, |_, message| match (message.kind, message.status()) {
            (NEW_TABLE, _) => Some(Ok(true)),
            (ERROR, Some(status)) if status == -libc::ENOENT => Some(Ok(false)),
            (ERROR, Some(status)) => Some(Err(io::Error::from_raw_os_error(status.wrapping_neg()))),
            _ => None,
        })?
    }
}
