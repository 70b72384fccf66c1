//! Text of a guest or a monitor, made fit to be shown.

/// Bytes of one such text.
pub const MAX_TEXT: usize = 2048;

/// Text of a guest or a monitor, fit to be shown: no control characters, at most [`MAX_TEXT`] bytes.
pub fn sanitize(message: &str) -> String {
    sanitize_to(message, MAX_TEXT)
}

/// The same with at most `most` bytes.
pub fn sanitize_to(message: &str, most: usize) -> String {
    let message = message.trim_end();
    let mut end = message.len().min(most);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_text_cannot_steer_a_terminal_or_fill_memory() {
        assert_eq!(sanitize("\x1b[2Jhello\r\n"), "\u{fffd}[2Jhello");
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(sanitize(&long).len(), MAX_TEXT);
    }
}
