//! Chance, passed in, so that a test can decide it.

use std::fmt;
use std::sync::Arc;

/// Throws dice.
#[derive(Clone)]
pub struct Chance(Arc<dyn Fn() -> f64 + Send + Sync>);

impl Chance {
    /// The process's generator.
    pub fn system() -> Self {
        Self(Arc::new(rand::random))
    }

    /// Chance that says what `draw` says: numbers in `[0, 1)`.
    pub fn from_fn(draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(draw))
    }

    /// A number in `[0, 1)`.
    pub fn draw(&self) -> f64 {
        (self.0)()
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chance")
    }
}
