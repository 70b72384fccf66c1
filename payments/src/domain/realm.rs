//! The two worlds of a merchant, which share nothing but its name: keys, payments, webhook address, deliveries and the
//! markets that are enabled all belong to one of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where money is real, or where it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Realm {
    /// Real money; keys say `prod`.
    Live,
    /// Play money; keys say `test`.
    Sandbox,
}

impl Realm {
    /// Both.
    pub const ALL: [Realm; 2] = [Realm::Live, Realm::Sandbox];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Realm::Live => "live",
            Realm::Sandbox => "sandbox",
        }
    }

    /// Its name, as people read it.
    pub fn title(self) -> &'static str {
        match self {
            Realm::Live => "Live",
            Realm::Sandbox => "Sandbox",
        }
    }

    /// What its public keys begin with.
    pub fn public_prefix(self) -> &'static str {
        match self {
            Realm::Live => "pk_prod_",
            Realm::Sandbox => "pk_test_",
        }
    }

    /// What its secret keys begin with; the rest is the base64 of the key that signs webhooks.
    pub fn secret_prefix(self) -> &'static str {
        match self {
            Realm::Live => "sk_prod_",
            Realm::Sandbox => "sk_test_",
        }
    }
}

impl fmt::Display for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Realm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Realm::ALL.into_iter().find(|realm| realm.as_str() == text).ok_or(())
    }
}
