//! The data plane as an ordinary process serves it, on a Unix socket, with real files and programs. Needs root, because
//! it acts as other users.

mod compose;
mod documentation;
mod encodings;
mod files;
mod filesystem;
mod image;
mod output;
mod process;
mod support;
mod volume;
mod watch;
