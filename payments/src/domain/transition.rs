//! Which updates of a payment are accepted.
//!
//! Updates come over a network that repeats and reorders, so `updatedAt` decides first: an older one is late and changes
//! nothing, the same one is a repetition and must say the same. Only a newer one is looked at further: it may not touch
//! what the payment *is*, and must be a move of the diagram at [`Status`].

use jiff::Timestamp;

use super::order::{PaymentOrder, Status};

/// What to do with an update that is not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the payment's new state.
    Accept,
    /// It was accepted before.
    Repetition,
}

/// Why an update is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("The update is late: the payment was updated at {stored}, and updatedAt must be later than that")]
    Late { stored: Timestamp },
    #[error("The payment has another update of this very updatedAt; give every update a later one")]
    SameTimeOtherContent,
    #[error("{field} is what it was when the payment was first reported; it cannot be changed")]
    Fixed { field: &'static str },
    #[error("A payment that is {from} cannot become {to}")]
    IllegalMove { from: Status, to: Status },
    #[error("A payment that is COMPLETED is updated only to correct actualAmount, which is {stored} already")]
    NothingCorrected { stored: String },
}

impl Refusal {
    /// For programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Late { .. } => "STALE_UPDATE",
            Refusal::SameTimeOtherContent => "CONFLICTING_UPDATE",
            Refusal::Fixed { .. } => "FIXED_FIELD",
            Refusal::IllegalMove { .. } | Refusal::NothingCorrected { .. } => "ILLEGAL_TRANSITION",
        }
    }
}

/// Judges an update of a payment that is stored.
pub fn judge(stored: &PaymentOrder, update: &PaymentOrder) -> Result<Verdict, Refusal> {
    if update.updated_at < stored.updated_at {
        return Err(Refusal::Late { stored: stored.updated_at });
    }
    if update.updated_at == stored.updated_at {
        return if update == stored { Ok(Verdict::Repetition) } else { Err(Refusal::SameTimeOtherContent) };
    }
    let fixed = [
        ("amount", stored.amount == update.amount),
        ("currencyCode", stored.currency_code == update.currency_code),
        ("countryCode", stored.country_code == update.country_code),
        ("paymentMethod", stored.payment_method == update.payment_method),
        ("createdAt", stored.created_at == update.created_at),
    ];
    if let Some((field, _)) = fixed.into_iter().find(|(_, kept)| !kept) {
        return Err(Refusal::Fixed { field });
    }
    match (stored.status, update.status) {
        (Status::Pending, _) | (Status::Failed, Status::Completed) => Ok(Verdict::Accept),
        (Status::Completed, Status::Completed) => match (&stored.actual_amount, &update.actual_amount) {
            (Some(before), Some(after)) if before.is_same_value(after) => {
                Err(Refusal::NothingCorrected { stored: before.to_string() })
            }
            _ => Ok(Verdict::Accept),
        },
        (from, to) => Err(Refusal::IllegalMove { from, to }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn order(status: Status, actual: Option<&str>, updated_at: i64) -> PaymentOrder {
        PaymentOrder {
            id: "pay_1".into(),
            status,
            amount: "100".parse().unwrap(),
            actual_amount: actual.map(|text| text.parse().unwrap()),
            currency_code: "KES".into(),
            country_code: "KE".into(),
            payment_method: "PAYMENT_METHOD_MOBILE_MONEY".into(),
            operator: None,
            bank_code: None,
            mobile_money_transfer_details: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::from_second(updated_at).unwrap(),
            metadata: BTreeMap::new(),
        }
    }

    #[test]
    fn every_pair_of_states_is_decided_as_the_diagram_says() {
        use Status::{Completed, Failed, Pending};
        let legal =
            [(Pending, Pending), (Pending, Completed), (Pending, Failed), (Failed, Completed), (Completed, Completed)];
        for from in Status::ALL {
            for to in Status::ALL {
                let verdict = judge(&order(from, Some("100"), 1), &order(to, Some("90"), 2));
                let expected = match legal.contains(&(from, to)) {
                    true => Ok(Verdict::Accept),
                    false => Err(Refusal::IllegalMove { from, to }),
                };
                assert_eq!(verdict, expected, "{from} -> {to}");
            }
        }
    }

    #[test]
    fn a_completed_payment_is_updated_only_with_another_amount() {
        let stored = order(Status::Completed, Some("100"), 1);
        for same in ["100", "100.00"] {
            let verdict = judge(&stored, &order(Status::Completed, Some(same), 2));
            assert_eq!(verdict, Err(Refusal::NothingCorrected { stored: "100".into() }), "{same}");
        }
        assert_eq!(judge(&stored, &order(Status::Completed, Some("100.01"), 2)), Ok(Verdict::Accept));
    }

    #[test]
    fn time_decides_before_anything_else() {
        let stored = order(Status::Failed, None, 5);
        assert_eq!(judge(&stored, &stored.clone()), Ok(Verdict::Repetition));
        assert_eq!(judge(&stored, &order(Status::Pending, None, 5)), Err(Refusal::SameTimeOtherContent));
        let late = Refusal::Late { stored: stored.updated_at };
        assert_eq!(judge(&stored, &order(Status::Completed, Some("1"), 4)), Err(late));
    }

    #[test]
    fn what_the_payment_is_cannot_be_changed() {
        let stored = order(Status::Pending, None, 1);
        type Change = fn(&mut PaymentOrder);
        let changes: [(&str, Change); 5] = [
            ("amount", |order| order.amount = "100.0".parse().unwrap()),
            ("currencyCode", |order| order.currency_code = "USD".into()),
            ("countryCode", |order| order.country_code = "UG".into()),
            ("paymentMethod", |order| order.payment_method = "PAYMENT_METHOD_BANK_ACCOUNT".into()),
            ("createdAt", |order| order.created_at = Timestamp::from_second(1).unwrap()),
        ];
        for (field, change) in changes {
            let mut update = order(Status::Pending, None, 2);
            change(&mut update);
            assert_eq!(judge(&stored, &update), Err(Refusal::Fixed { field }), "{field}");
        }
    }
}
