//! Random numbers that spread attempts, passed in so that a test can decide them.

use std::fmt;
use std::sync::Arc;

/// Where jitter comes from.
#[derive(Clone)]
pub struct Jitter(Arc<dyn Fn() -> f64 + Send + Sync>);

impl Jitter {
    /// The process's generator.
    pub fn system() -> Self {
        Self(Arc::new(rand::random))
    }

    /// Jitter as `draw` says: numbers in `[0, 1)`.
    pub fn from_fn(draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(draw))
    }

    /// A number in `[0, 1)`.
    pub fn draw(&self) -> f64 {
        (self.0)()
    }
}

impl fmt::Debug for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jitter")
    }
}
