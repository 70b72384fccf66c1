//! Errors as people read them.

use std::error::Error;

/// An error and all that caused it, on one line: `what failed: because of: because of`.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("Cannot start the monitor")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn every_cause_is_named_in_order() {
        let inner = std::io::Error::other("no room");
        assert_eq!(chain(&Outer(inner)), "Cannot start the monitor: no room");
    }
}
