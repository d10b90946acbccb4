//! What lies outside and may change while the relay runs, such as a password in a file.

use std::fmt;
use std::sync::Arc;

/// Reads a value where it lies, each time anew.
pub struct Fresh<T>(Arc<dyn Fn() -> Result<T, String> + Send + Sync>);

impl<T: Send + 'static> Fresh<T> {
    /// The errors of `read` are for people and hold no secret.
    pub fn new(read: impl Fn() -> Result<T, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The value as it is now. Blocks as long as its file system does.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn read(&self) -> Result<T, String> {
        (self.0)()
    }

    /// As `read`, on a thread that may block.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_apart(&self) -> Result<T, String> {
        let fresh = self.clone();
        tokio::task::spawn_blocking(move || fresh.read()).await.map_err(|error| error.to_string())?
    }
}

impl<T> Clone for Fresh<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Fresh<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fresh")
    }
}
