//! `sandpiper-api merchant …`

use anyhow::{Context, bail};
use jiff::Timestamp;
use sandpiper_accounts::membership::TOKEN;
use sandpiper_accounts::{Email, Role};
use sandpiper_http::keys;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::Store;
use sandpiper_payments::store::merchant_users::NewMerchantInvitation;

use super::audit;

/// Makes an invitation to become a user of a merchant, named by its id or its name, and prints its token. `realm`: both, if it is none.
pub async fn invite(
    store: &Store,
    merchant: &str,
    role: Role,
    realm: Option<Realm>,
    email: Option<&Email>,
) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let found = store.merchants.named(merchant).await?;
    let found =
        found.with_context(|| format!("There is no merchant {merchant:?}; GET /operator/v1/merchants lists them"))?;
    let token = keys::generate(TOKEN);
    let Some(hash) = keys::hash(TOKEN, &token) else { bail!("A new token does not have the form of one") };
    let new = NewMerchantInvitation { realm, role, email, invited_by: None, hash: &hash };
    let Some(invitation) = store.merchant_users.invite(&found.id, &new, now).await? else {
        bail!("There is no merchant {merchant:?} any more");
    };
    let resource = format!("merchants/{}/invitations/{}", found.id, invitation.id);
    audit::write(&store.audit, "merchant invite", Some(&resource)).await?;
    println!("{}", *token);
    let realms = realm.map_or("both realms", Realm::as_str);
    eprintln!(
        "Whoever opens /portal/join#TOKEN until {} becomes {role} of {} in {realms}. It is not shown again.",
        invitation.expires_at, found.name
    );
    Ok(())
}
