//! What the fuzz targets share: reading an input as a program, the driver's side of virtqueues, streams in pieces, and a place
//! to wait in.

mod driver;
mod input;
mod pieces;

pub use self::driver::{Driver, SLOT, SLOTS, put};
pub use self::input::Input;
pub use self::pieces::Pieces;

/// Runs what waits. The runtime is kept from input to input, for it costs more than most of them.
pub fn block_on<F: Future>(future: F) -> F::Output {
    use std::cell::LazyCell;
    use tokio::runtime::{Builder, Runtime};
    thread_local! {
        static RUNTIME: LazyCell<Runtime> =
            LazyCell::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
