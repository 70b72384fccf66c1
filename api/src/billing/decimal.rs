//! Quotients as decimal text.

/// `numerator / denominator`, to the last digit: `1.5`. The denominator, at most 2^64, is a product of twos and fives, so that
/// there is a last digit.
pub fn text(numerator: u128, denominator: u128) -> String {
    let mut text = (numerator / denominator).to_string();
    let mut rest = numerator % denominator;
    if rest > 0 {
        text.push('.');
    }
    while rest > 0 {
        rest *= 10;
        text.push_str(&(rest / denominator).to_string());
        rest %= denominator;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_has_all_its_digits_and_no_more() {
        assert_eq!(text(0, 1000), "0");
        assert_eq!(text(2000, 1000), "2");
        assert_eq!(text(1_234_567, 1000), "1234.567");
        assert_eq!(text(50, 1000), "0.05");
        assert_eq!(text(1, 1 << 30), "0.000000000931322574615478515625");
        assert_eq!(text(256, 1024 * 1000), "0.00025");
    }
}
