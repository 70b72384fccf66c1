//! Work that waits for a disk or the kernel, on a thread where it holds up no other task.

use std::io;

use tokio::task::JoinError;

/// The work panicked, or the runtime ended before it began.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Interrupted(#[from] JoinError);

impl From<Interrupted> for io::Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::other(interrupted)
    }
}

/// Does `work` on a thread of its own, to its end even if the caller no longer waits.
///
/// # Errors
/// Those of `work`; [`Interrupted`] when it has no result.
pub async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Interrupted> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(Interrupted)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_work_is_an_error_of_its_caller() {
        assert_eq!(blocking(|| Ok::<_, io::Error>(7)).await.unwrap(), 7);
        let failed = blocking(|| Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull))).await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(
            blocking::<(), io::Error>(|| panic!("as in a test")).await.unwrap_err().kind(),
            io::ErrorKind::Other
        );
    }
}
