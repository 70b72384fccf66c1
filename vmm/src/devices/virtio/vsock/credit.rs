//! Flow control, virtio 1.2 section 5.10.6.3: each side tells the other how large its buffer is (`buf_alloc`) and how many
//! bytes have left that buffer so far (`fwd_cnt`). All counters wrap at 2^32.

/// What the guest may have on its way to a host stream.
pub(super) const BUF_ALLOC: u32 = 256 * 1024;

/// Bytes that must have left the buffer, beyond what the guest knows of, before a packet is spent to say so.
const UPDATE_THRESHOLD: u32 = BUF_ALLOC / 4;

/// The guest sent more than it was allowed to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CreditExceeded;

/// Guest to host.
#[derive(Debug, Default)]
pub(super) struct ReceiveCredit {
    received: u32,
    forwarded: u32,
    /// `forwarded` as the guest knows it.
    advertised: u32,
}

impl ReceiveCredit {
    /// `len` bytes came from the guest.
    pub(super) fn receive(&mut self, len: u32) -> Result<(), CreditExceeded> {
        let held = self.received.wrapping_sub(self.forwarded);
        if len > BUF_ALLOC.saturating_sub(held) {
            return Err(CreditExceeded);
        }
        self.received = self.received.wrapping_add(len);
        Ok(())
    }

    /// `len` of the bytes received left the buffer.
    pub(super) fn forward(&mut self, len: usize) {
        // Never more than was received, and that fits the buffer: the cast loses nothing.
        let len = u32::try_from(len).unwrap_or(BUF_ALLOC);
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// `fwd_cnt` for a header that is about to go out.
    pub(super) fn advertise(&mut self) -> u32 {
        self.advertised = self.forwarded;
        self.advertised
    }

    pub(super) fn is_worth_telling(&self) -> bool {
        self.forwarded.wrapping_sub(self.advertised) >= UPDATE_THRESHOLD
    }
}

/// Host to guest.
#[derive(Debug, Default)]
pub(super) struct SendCredit {
    buf_alloc: u32,
    fwd_cnt: u32,
    sent: u32,
}

impl SendCredit {
    /// Takes over what a header from the guest says. Nonsense only hurts the guest: see [`Self::available`].
    pub(super) fn update(&mut self, buf_alloc: u32, fwd_cnt: u32) {
        self.buf_alloc = buf_alloc;
        self.fwd_cnt = fwd_cnt;
    }

    /// Bytes that may be sent now. A guest that claims to have forwarded more than was sent looks as if it had a huge
    /// amount in its buffer, and gets nothing.
    pub(super) fn available(&self) -> usize {
        let held = self.sent.wrapping_sub(self.fwd_cnt);
        self.buf_alloc.saturating_sub(held) as usize
    }

    pub(super) fn send(&mut self, len: u32) {
        self.sent = self.sent.wrapping_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiving_more_than_the_buffer_is_refused_until_bytes_are_forwarded() {
        let mut credit = ReceiveCredit::default();

        assert_eq!(credit.receive(BUF_ALLOC), Ok(()));
        assert_eq!(credit.receive(1), Err(CreditExceeded));
        credit.forward(1);

        assert_eq!(credit.receive(1), Ok(()));
        assert_eq!(credit.receive(u32::MAX), Err(CreditExceeded));
    }

    #[test]
    fn an_update_is_due_after_a_quarter_of_the_buffer_and_not_after_it_was_told() {
        let mut credit = ReceiveCredit::default();
        credit.receive(BUF_ALLOC).expect("within the buffer");

        credit.forward(UPDATE_THRESHOLD as usize - 1);
        assert!(!credit.is_worth_telling());
        credit.forward(1);
        assert!(credit.is_worth_telling());

        assert_eq!(credit.advertise(), UPDATE_THRESHOLD);
        assert!(!credit.is_worth_telling());
    }

    #[test]
    fn counters_wrap_without_changing_what_is_available() {
        let mut credit = SendCredit { buf_alloc: 100, fwd_cnt: u32::MAX - 9, sent: u32::MAX - 9 };

        credit.send(60);

        assert_eq!(credit.available(), 40);
        credit.update(100, 50);
        assert_eq!(credit.available(), 100);
    }

    #[test]
    fn a_guest_that_forwarded_more_than_was_sent_gets_nothing() {
        let mut credit = SendCredit::default();

        credit.update(4096, 1);

        assert_eq!(credit.available(), 0);
    }

    #[test]
    fn a_buffer_that_shrank_below_what_it_holds_gets_nothing() {
        let mut credit = SendCredit::default();
        credit.update(4096, 0);
        credit.send(4000);

        credit.update(1000, 0);

        assert_eq!(credit.available(), 0);
    }
}
