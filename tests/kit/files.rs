//! Files for a relay or a service, in a folder that goes with the test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{cleanup, services};

/// See the module.
pub struct Files(PathBuf);

impl Files {
    /// An empty folder among the build's results.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(what: &str) -> Result<Self> {
        let folder = services::target_dir().join(format!("{what}.test-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Where a file is, or would be.
    ///
    /// # Errors
    /// When the folder's name is no text.
    pub fn path(&self, name: &str) -> Result<String> {
        Ok(self.0.join(name).to_str().context("the folder's name is no text")?.to_owned())
    }

    /// Writes a file anew; its path. Whoever reads meanwhile gets the old or the new file whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<String> {
        let new = self.0.join("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, self.0.join(name))?;
        self.path(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if cleanup::is_wanted() {
            // What is left is in the folder of build results.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
