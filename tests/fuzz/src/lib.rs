//! What the fuzz targets share: reading an input as a program, the driver's side of virtqueues, streams in pieces, a second
//! reader of HTTP requests, and a place to wait in.

mod driver;
mod input;
mod pieces;
mod request;

pub use self::driver::{Driver, SLOT, SLOTS, put};
pub use self::input::Input;
pub use self::pieces::Pieces;
pub use self::request::{Flaw, Request, statuses};

use std::cell::LazyCell;

use tokio::runtime::{Builder, Runtime};

/// Runs what waits. The runtime is kept from input to input, for it costs more than most of them.
pub fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: LazyCell<Runtime> = LazyCell::new(|| runtime(false));
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// As [`block_on`], with a clock of its own, which goes on only when nothing else does: who sleeps has waited until all
/// others wait, and no longer.
pub fn block_on_at_rest<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: LazyCell<Runtime> = LazyCell::new(|| runtime(true));
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn runtime(paused: bool) -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(paused).build().expect("a runtime")
}
