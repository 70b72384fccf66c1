//! Users of a realm, and who is invited.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use sandpiper_accounts::membership::{Changed, TOKEN};
use sandpiper_accounts::{Email, Role, UserId};
use sandpiper_http::error::ApiError;
use sandpiper_http::keys;
use sandpiper_web::Problem;
use sandpiper_web::response::{Refusal, page};
use sandpiper_web::view::{self, own_url};

use super::SITE;
use super::visit::{Order, Visit, Visitor};
use crate::state::App;
use crate::store::merchant_users::{MerchantInvitation, MerchantUser, NewMerchantInvitation};

/// Invitations to a realm that can be accepted at a time.
const MOST: u32 = 100;

const INVITE: &str = "POST /portal/{merchant}/{realm}/users";
const CHANGE: &str = "POST /portal/{merchant}/{realm}/users/{user}/do";
const WITHDRAW: &str = "POST /portal/{merchant}/{realm}/invitations/{id}/withdraw";

#[derive(Template)]
#[template(path = "users.html")]
struct Page {
    visit: Visit,
    users: Vec<MerchantUser>,
    invitations: Vec<MerchantInvitation>,
    /// The link of an invitation that was just made.
    link: Option<String>,
}

impl Page {
    fn visitor(&self) -> &Visitor {
        &self.visit.visitor
    }
}

/// `GET /portal/{merchant}/{realm}/users`
pub(super) async fn list(State(app): State<App>, visit: Visit) -> Result<Response, Refusal> {
    respond(&app, visit, None).await
}

/// `POST /portal/{merchant}/{realm}/users`: the only page that shows the link.
pub(super) async fn invite(
    State(app): State<App>,
    headers: HeaderMap,
    Order { visit, fields }: Order,
) -> Result<Response, Refusal> {
    let (place, now) = (visit.place(), app.clock.now());
    let role: Role = role(fields.text("role").unwrap_or_default())?;
    visit.check(&app, role.max(Role::Admin), INVITE, place.realm.as_str()).await?;
    let email = fields.text("email").map(str::parse::<Email>).transpose();
    let email = email.map_err(|reason| ApiError::invalid_field("email", reason))?;
    let users = &app.store.merchant_users;
    let open = users.invitations(&place, MOST, now).await.map_err(ApiError::from)?;
    if open.len() >= MOST as usize {
        return Err(ApiError::conflict(format!("The realm has {MOST} open invitations; withdraw one first")).into());
    }
    let token = keys::generate(TOKEN);
    let hash = keys::hash(TOKEN, &token).ok_or_else(|| ApiError::internal("a new token has no hash"))?;
    let (realm, invited_by) = (Some(place.realm), Some(&visit.visitor.user.id));
    let new = NewMerchantInvitation { realm, role, email: email.as_ref(), invited_by, hash: &hash };
    let made = users.invite(&place.merchant_id, &new, now).await.map_err(ApiError::from)?;
    let made = made.ok_or_else(|| ApiError::not_found("There is no such merchant any more"))?;
    app.store.audit.keep(vec![visit.visitor.entry(&app, &place.merchant_id, INVITE, made.id)]).await;
    let link = format!("{}{}/join#{}", own_url(&headers), SITE.root, *token);
    respond(&app, visit, Some(link)).await
}

/// `POST /portal/{merchant}/{realm}/users/{user}/do`: gives another role, or removes.
pub(super) async fn act(
    State(app): State<App>,
    Path((_, _, user)): Path<(String, String, String)>,
    Order { visit, fields }: Order,
) -> Result<Redirect, Refusal> {
    let (place, user) = (visit.place(), UserId::from(user));
    let role = match fields.text("action").unwrap_or_default() {
        "role" => Some(role(fields.text("role").unwrap_or_default())?),
        "remove" => None,
        other => return Err(Problem::new(StatusCode::BAD_REQUEST, format!("There is no action {other:?}")).into()),
    };
    let actor = &visit.visitor.user.id;
    if role.is_some() || *actor != user {
        visit.check(&app, Role::Admin, CHANGE, &user).await?;
    }
    let changed = app.store.merchant_users.change(&place, actor, &user, role, app.clock.now()).await;
    match changed.map_err(ApiError::from)? {
        Changed::Done => {}
        Changed::NoMember => return Err(ApiError::not_found("There is no such user of this realm").into()),
        Changed::LastOwner => {
            let message = "The realm's last owner stays one; make somebody else an owner first";
            return Err(ApiError::conflict(message).into());
        }
        Changed::Forbidden => {
            let message = "Only an owner makes owners of others, or takes that away";
            return Err(Problem::new(StatusCode::FORBIDDEN, message).into());
        }
    }
    app.store.audit.keep(vec![visit.visitor.entry(&app, &place.merchant_id, CHANGE, user.to_string())]).await;
    // Who has left sees the realm no more.
    Ok(Redirect::to(&if *actor == user { SITE.root.to_owned() } else { visit.at("users") }))
}

/// `POST /portal/{merchant}/{realm}/invitations/{id}/withdraw`
pub(super) async fn withdraw(
    State(app): State<App>,
    Path((_, _, id)): Path<(String, String, String)>,
    Order { visit, .. }: Order,
) -> Result<Redirect, Refusal> {
    let place = visit.place();
    visit.check(&app, Role::Admin, WITHDRAW, &id).await?;
    if !app.store.merchant_users.withdraw(&place, &id).await.map_err(ApiError::from)? {
        return Err(ApiError::not_found("There is no such invitation to this realm").into());
    }
    app.store.audit.keep(vec![visit.visitor.entry(&app, &place.merchant_id, WITHDRAW, id)]).await;
    Ok(Redirect::to(&visit.at("users")))
}

async fn respond(app: &App, visit: Visit, link: Option<String>) -> Result<Response, Refusal> {
    let (place, now) = (visit.place(), app.clock.now());
    let users = app.store.merchant_users.of(&place).await.map_err(ApiError::from)?;
    let invitations = match visit.may_manage() {
        true => app.store.merchant_users.invitations(&place, MOST, now).await.map_err(ApiError::from)?,
        false => Vec::new(),
    };
    Ok(page(&Page { visit, users, invitations, link }).into_response())
}

fn role(text: &str) -> Result<Role, Problem> {
    text.parse().map_err(|reason: String| Problem::new(StatusCode::BAD_REQUEST, reason))
}
