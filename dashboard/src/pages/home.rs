//! `/dashboard`: to the sandboxes of one's own team.

use axum::response::Redirect;

use crate::visit::Visit;

pub(crate) async fn to_home(visit: Visit) -> Redirect {
    Redirect::to(&visit.at("sandboxes"))
}
