//! Ids of the payments side that stand side by side.

use sandpiper_protocol::typed_id;

typed_id!(
    /// The id of a merchant: `mer…`.
    MerchantId,
    "mer"
);
typed_id!(
    /// The id of one of a merchant's keys: `mky…`.
    MerchantKeyId,
    "mky"
);
