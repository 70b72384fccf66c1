//! Where the dashboard is, and its responses.

use axum::response::Response;
use sandpiper_web::Site;
use sandpiper_web::assets::{Assets, File, SCRIPT, STYLE, version_of};
pub use sandpiper_web::response::{POLICY, Refusal, page};

/// What the pages load.
const FILES: [File; 8] = [
    STYLE,
    SCRIPT,
    ("files.js", include_str!("../assets/files.js")),
    ("network.js", include_str!("../assets/network.js")),
    ("terminal.js", include_str!("../assets/terminal.js")),
    ("xterm.css", include_str!("../assets/third-party/xterm.css")),
    ("xterm.js", include_str!("../assets/third-party/xterm.js")),
    ("addon-fit.js", include_str!("../assets/third-party/addon-fit.js")),
];

static ASSETS: Assets = Assets::new(&FILES, || version_of(&FILES));

/// The dashboard.
pub const SITE: Site = Site { root: "/dashboard", assets: &ASSETS };

/// Whether what is under a path is for people: an error there is a page.
pub fn speaks(path: &str) -> bool {
    SITE.has(path)
}

/// Makes a page of an error that no handler of here made.
pub fn render(response: Response, request_id: &str) -> Response {
    sandpiper_web::response::render(&SITE, response, request_id)
}
