//! What things cost, and how that is computed: exactly, and rounded once.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::{Consumption, decimal};

/// Digits of a price before the point, and behind it, at most.
const WHOLE: usize = 6;
const FRACTION: usize = 12;
/// How much of a currency's unit a [`Price`] of 1 is.
const PRICE_SCALE: u128 = 10_u128.pow(12);
/// Costs are in millionths of a currency's unit.
const COST_SCALE: u128 = 1_000_000;

/// Of one unit, in 10^-12 of a currency's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price(u128);

/// What a team pays.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    pub currency: String,
    pub vcpu_second: Price,
    pub memory_gib_second: Price,
    pub storage_gib_hour: Price,
    /// Nothing, where it is not said: these came later than the others.
    #[serde(default)]
    pub egress_gib: Price,
    #[serde(default)]
    pub ingress_gib: Price,
}

/// Millionths of a currency's unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost(u128);

impl std::str::FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number =
            |part: &str, most| (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole, WHOLE) || !is_number(fraction, FRACTION) {
            return Err(format!(
                "{text:?} is no price: write decimal text such as \"0.000014\", with at most {WHOLE} digits before the point \
                 and {FRACTION} behind it"
            ));
        }
        let digits = format!("{whole}{fraction:0<FRACTION$}");
        digits.parse().map(Self).map_err(|_| format!("{text:?} is no price"))
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&decimal::text(self.0, PRICE_SCALE))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&decimal::text(self.0, COST_SCALE))
    }
}

/// Nothing costs.
impl Default for Prices {
    fn default() -> Self {
        let nothing = Price::default();
        Self {
            currency: "USD".to_owned(),
            vcpu_second: nothing,
            memory_gib_second: nothing,
            storage_gib_hour: nothing,
            egress_gib: nothing,
            ingress_gib: nothing,
        }
    }
}

impl Prices {
    /// What was consumed costs, rounded to the nearest millionth; `None` beyond all numbers.
    pub fn cost(&self, consumed: &Consumption) -> Option<Cost> {
        // All over one denominator, the least that there is: 1000 ms, 1024 MiB times 1000 ms, 2^30 bytes.
        const DENOMINATOR: u128 = (1 << 30) * 125;
        let of = |amount: u128, price: Price, unit: u128| amount.checked_mul(price.0)?.checked_mul(DENOMINATOR / unit);
        let numerator = of(consumed.cpu_ms, self.vcpu_second, 1000)?
            .checked_add(of(consumed.memory_mb_ms, self.memory_gib_second, 1024 * 1000)?)?
            .checked_add(of(consumed.storage_byte_hours, self.storage_gib_hour, 1 << 30)?)?
            .checked_add(of(consumed.egress_bytes, self.egress_gib, 1 << 30)?)?
            .checked_add(of(consumed.ingress_bytes, self.ingress_gib, 1 << 30)?)?;
        let denominator = DENOMINATOR * (PRICE_SCALE / COST_SCALE);
        Some(Cost(numerator.checked_add(denominator / 2)? / denominator))
    }

    /// What each of these costs, one after the other: each the difference that it makes to the cost of all before it. So their
    /// sum is the cost of all, however each would be rounded by itself.
    pub fn costs<'a>(&self, consumed: impl IntoIterator<Item = &'a Consumption>) -> Option<Vec<Cost>> {
        let (mut sum, mut before) = (Consumption::default(), Cost::default());
        let mut costs = Vec::new();
        for one in consumed {
            sum += *one;
            let until = self.cost(&sum)?;
            costs.push(Cost(until.0 - before.0));
            before = until;
        }
        Some(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(vcpu: &str, memory: &str, storage: &str) -> Prices {
        let price = |text: &str| text.parse().unwrap();
        Prices {
            currency: "USD".into(),
            vcpu_second: price(vcpu),
            memory_gib_second: price(memory),
            storage_gib_hour: price(storage),
            ..Prices::default()
        }
    }

    #[test]
    fn a_price_is_decimal_text() {
        for text in ["0", "1", "0.000014", "999999.999999999999", "0.5"] {
            assert_eq!(text.parse::<Price>().unwrap().to_string(), text);
        }
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", "0.0000000000001", "1000000", " 1"] {
            assert!(text.parse::<Price>().unwrap_err().contains("is no price"), "{text}");
        }
    }

    #[test]
    fn each_unit_has_its_price() {
        let prices = prices("0.5", "0.25", "3");
        let of = |cpu_ms, memory_mb_ms, storage_byte_hours| {
            let consumed = Consumption { cpu_ms, memory_mb_ms, storage_byte_hours, ..Consumption::default() };
            prices.cost(&consumed).unwrap().to_string()
        };
        assert_eq!(of(2000, 0, 0), "1");
        assert_eq!(of(0, 2048 * 1000, 0), "0.5");
        assert_eq!(of(0, 0, 3 << 29), "4.5");
        assert_eq!(of(1, 0, 0), "0.0005");
        assert_eq!(of(2000, 2048 * 1000, 3 << 29), "6");
    }

    #[test]
    fn traffic_costs_by_the_gib_each_way_for_itself() {
        let of = |egress_gib: &str, ingress_gib: &str, egress_bytes, ingress_bytes| {
            let price = |text: &str| text.parse().unwrap();
            let prices = Prices { egress_gib: price(egress_gib), ingress_gib: price(ingress_gib), ..Prices::default() };
            prices.cost(&Consumption { egress_bytes, ingress_bytes, ..Consumption::default() }).unwrap().to_string()
        };
        assert_eq!(of("0.09", "0", 3 << 29, 1 << 40), "0.135");
        assert_eq!(of("0.09", "0.01", 1 << 30, 5 << 30), "0.14");
        assert_eq!(of("0.09", "0", 1 << 20, 0), "0.000088", "0.000087890625");
        assert_eq!(of("0.5", "0", 1, 0), "0");
    }

    #[test]
    fn prices_of_before_traffic_was_counted_are_whole() {
        let prices = r#"{"currency": "EUR", "vcpu_second": "1", "memory_gib_second": "2", "storage_gib_hour": "3"}"#;
        let prices: Prices = serde_json::from_str(prices).unwrap();
        assert_eq!((prices.egress_gib, prices.ingress_gib), (Price::default(), Price::default()));
    }

    #[test]
    fn a_cost_is_rounded_to_the_nearest_millionth() {
        let prices = prices("0.001", "0", "0");
        let cost = |cpu_ms| prices.cost(&Consumption { cpu_ms, ..Consumption::default() }).unwrap().to_string();
        assert_eq!(cost(1), "0.000001");
        let prices = self::prices("0.0005", "0", "0");
        let cost_of = |cpu_ms| prices.cost(&Consumption { cpu_ms, ..Consumption::default() }).unwrap().to_string();
        assert_eq!([cost_of(0), cost_of(1), cost_of(2), cost_of(3)], ["0", "0.000001", "0.000001", "0.000002"]);
    }

    #[test]
    fn costs_one_after_the_other_have_the_sum_of_all() {
        let egress_gib = "0.087".parse().unwrap();
        let prices = Prices { egress_gib, ..prices("0.0000138", "0.0000015", "0.00015") };
        let consumed: Vec<_> = (0..500)
            .map(|_| Consumption {
                cpu_ms: rand::random_range(0..100_000),
                memory_mb_ms: rand::random_range(0..100_000_000),
                storage_byte_hours: rand::random_range(0..1 << 40),
                egress_bytes: rand::random_range(0..1 << 32),
                ingress_bytes: rand::random_range(0..1 << 32),
            })
            .collect();
        let all = consumed.iter().fold(Consumption::default(), |sum, one| sum + *one);

        let costs = prices.costs(&consumed).unwrap();

        assert_eq!(costs.iter().map(|cost| cost.0).sum::<u128>(), prices.cost(&all).unwrap().0);
        for (cost, one) in costs.iter().zip(&consumed) {
            assert!(cost.0.abs_diff(prices.cost(one).unwrap().0) <= 1);
        }
    }

    #[test]
    fn the_largest_host_has_a_cost_for_years() {
        let (egress_gib, ingress_gib) = ("1000".parse().unwrap(), "1000".parse().unwrap());
        let dear = Prices { egress_gib, ingress_gib, ..prices("10000", "1000", "1000") };
        let years = 10 * 366 * 86_400_000;
        let consumed = Consumption {
            cpu_ms: 300 * years,
            memory_mb_ms: (4 << 20) * years,
            storage_byte_hours: (100 << 40) * 87_840,
            // 400 Gbit/s each way.
            egress_bytes: 50_000_000 * years,
            ingress_bytes: 50_000_000 * years,
        };
        assert!(dear.cost(&consumed).is_some());
        assert_eq!(dear.cost(&Consumption { cpu_ms: u128::MAX, ..Consumption::default() }), None);
    }
}
