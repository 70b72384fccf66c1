//! The Merchant Portal: pages under `/portal` on which the users of a merchant see and say where a realm's webhooks go.
//!
//! They sign in as users of teams do, with the same cookie and the same rules for forms (`sandpiper-web`). In each realm of a merchant
//! a user has a role:
//!
//! | role | may |
//! |---|---|
//! | `viewer` | see |
//! | `member` | also save the URL, and send tests |
//! | `admin` | also rotate the secret key, invite and remove users |
//! | `owner` | also make owners of others |
//!
//! [`visit`] who looks at which realm · [`entrance`] signing in, joining · [`webhooks`], [`users`], [`account`] one file per page

use axum::extract::{DefaultBodyLimit, Path};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};
use sandpiper_web::Site;
use sandpiper_web::assets::{Assets, File, SCRIPT, STYLE, version_of};
use sandpiper_web::response::with_headers;

use crate::state::App;

mod account;
mod entrance;
mod users;
mod visit;
mod webhooks;

/// Longest form, in bytes.
const MAX_FORM: usize = 16 * 1024;

/// What the pages load.
const FILES: [File; 2] = [STYLE, SCRIPT];

static ASSETS: Assets = Assets::new(&FILES, || version_of(&FILES));

/// The portal.
const SITE: Site = Site { root: "/portal", assets: &ASSETS };

/// `/portal` and all below it.
pub fn router() -> Router<App> {
    let pages = Router::new()
        .route("/", get(visit::to_home))
        .route("/sign-in", get(entrance::show_sign_in).post(entrance::sign_in))
        .route("/sign-out", post(entrance::sign_out))
        .route("/join", get(entrance::show_join).post(entrance::join))
        .route("/account", get(account::show).post(account::change_password))
        .route("/-/assets/{version}/{name}", get(asset))
        .route("/{merchant}/{realm}/webhooks", get(webhooks::show).post(webhooks::change))
        .route("/{merchant}/{realm}/secret", post(webhooks::rotate))
        .route("/{merchant}/{realm}/users", get(users::list).post(users::invite))
        .route("/{merchant}/{realm}/users/{user}/do", post(users::act))
        .route("/{merchant}/{realm}/invitations/{id}/withdraw", post(users::withdraw))
        .fallback(visit::no_page);
    Router::new()
        .nest(SITE.root, pages)
        .route("/portal/", get(visit::to_home))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(middleware::from_fn_with_state(SITE, with_headers))
}

/// Whether what is under a path is for people: an error there is a page.
pub fn speaks(path: &str) -> bool {
    SITE.has(path)
}

/// Makes a page of an error that no handler of here made.
pub fn render(response: Response, request_id: &str) -> Response {
    sandpiper_web::response::render(&SITE, response, request_id)
}

async fn asset(Path((version, name)): Path<(String, String)>) -> Response {
    SITE.assets.show(&version, &name)
}
