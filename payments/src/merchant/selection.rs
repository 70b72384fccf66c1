//! What banks and operators are selected by: a country, a payment method, and for whom.

use sandpiper_discovery::{Audience, codes};

use crate::error::{Code, RpcError};
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::merchant_keys::ActiveMerchantKey;

/// A checked selection.
#[derive(Debug)]
pub struct Selection {
    pub country: String,
    pub method: String,
    /// That of the request, or else the account's default.
    vertical: Option<String>,
    segment: Option<String>,
}

impl Selection {
    /// The selection that a request makes; its payment method must be one of `methods`.
    pub fn new(
        app: &App,
        caller: &ActiveMerchantKey,
        parameters: Parameters,
        methods: &[&str],
    ) -> Result<Self, RpcError> {
        let parameters = parameters.only(&["countryCode", "paymentMethod", "trafficVertical", "customerSegment"])?;
        let country = parameters.required("countryCode")?;
        let method = parameters.required("paymentMethod")?;
        if !codes::is_country(country) {
            return Err(RpcError::invalid_parameter("countryCode", codes::COUNTRY));
        }
        if !methods.contains(&method) {
            return Err(RpcError::invalid_parameter("paymentMethod", format!("must be {}", methods.join(" or "))));
        }
        let settings = &app.settings.payments;
        let vertical = parameters.optional("trafficVertical");
        if let Some(vertical) = vertical {
            let check = settings.check_vertical(vertical);
            check.map_err(|problem| RpcError::invalid_parameter("trafficVertical", problem))?;
        }
        let segment = parameters.optional("customerSegment");
        if let Some(segment) = segment {
            let check = settings.check_segment(segment);
            check.map_err(|problem| RpcError::invalid_parameter("customerSegment", problem))?;
        }
        Ok(Self {
            country: country.to_owned(),
            method: method.to_owned(),
            vertical: vertical.or(caller.default_traffic_vertical.as_deref()).map(str::to_owned),
            segment: segment.map(str::to_owned),
        })
    }

    /// Refuses a method by which the merchant cannot be paid in this country.
    pub async fn check_available(&self, app: &App, caller: &ActiveMerchantKey) -> Result<(), RpcError> {
        let Self { country, method, .. } = self;
        if app.store.discovery.offers_in(&caller.merchant_id, caller.realm, country, method).await? {
            return Ok(());
        }
        let message = format!("{method} is not available for pay-ins in {country}; the catalog lists what is");
        Err(RpcError::new(Code::InvalidArgument, "PAYMENT_METHOD_UNAVAILABLE", message)
            .with("parameter", "paymentMethod")
            .with("countryCode", country)
            .with("paymentMethod", method))
    }

    /// Whether somebody with this audience is selected.
    pub fn admits(&self, audience: &Audience) -> bool {
        audience.admits(self.vertical.as_deref(), self.segment.as_deref())
    }

    /// Names the response to this selection. No part holds a slash, so no two selections have the same name.
    pub fn question(&self, caller: &ActiveMerchantKey) -> String {
        let Self { country, method, vertical, segment } = self;
        let (vertical, segment) = (vertical.as_deref().unwrap_or("-"), segment.as_deref().unwrap_or("-"));
        format!("{}/{}/{method}/{country}/{vertical}/{segment}", caller.merchant_id, caller.realm)
    }
}
