//! What pages for people have in common, whichever side of the API they are of: the dashboard, and the merchants' portal.
//!
//! * The session's token is in a cookie that only this host gets, and no script ([`session`]).
//! * A form carries a word that only its session's pages know ([`form`]).
//! * Nothing is loaded from elsewhere, and nothing in a page runs but the scripts that are served here ([`response`]).
//!
//! [`site`] where a side's pages are · [`problem`] why there is none · [`entrance`] the pages for who is not signed in · [`assets`]
//! style and scripts · [`view`] texts

pub mod assets;
pub mod entrance;
pub mod form;
pub mod problem;
pub mod response;
pub mod session;
pub mod site;
pub mod view;

pub use problem::Problem;
pub use site::Site;
