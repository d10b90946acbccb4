//! What must hold of a server and a database before anything is applied to it.

use tokio_postgres::GenericClient;

use crate::error::MigrateError;

const SERVER_VERSION_NUM_MIN: i32 = 140_000;

/// What a server says of itself.
#[derive(Debug)]
pub(crate) struct Server {
    version_num: i32,
    version: String,
    encoding: String,
    standby: bool,
}

impl Server {
    pub(crate) async fn ask(client: &impl GenericClient) -> Result<Self, tokio_postgres::Error> {
        let row = client
            .query_typed_one(
                "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, \
                        pg_catalog.current_setting('server_version'), \
                        pg_catalog.current_setting('server_encoding'), \
                        pg_catalog.pg_is_in_recovery()",
                &[],
            )
            .await?;
        Ok(Self {
            version_num: row.try_get(0)?,
            version: row.try_get(1)?,
            encoding: row.try_get(2)?,
            standby: row.try_get(3)?,
        })
    }

    pub(crate) fn check(self) -> Result<(), MigrateError> {
        if self.version_num < SERVER_VERSION_NUM_MIN {
            Err(MigrateError::ServerTooOld { found: self.version })
        } else if self.encoding != "UTF8" {
            Err(MigrateError::NotUtf8 { found: self.encoding })
        } else if self.standby {
            Err(MigrateError::Standby)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server { version_num: 140_000, version: "14.0".into(), encoding: "UTF8".into(), standby: false }
    }

    #[test]
    fn version_fourteen_is_enough() {
        assert!(server().check().is_ok());
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let old = Server { version_num: 130_014, ..server() };
        assert!(matches!(old.check(), Err(MigrateError::ServerTooOld { .. })));
        let latin = Server { encoding: "LATIN1".into(), ..server() };
        assert!(matches!(latin.check(), Err(MigrateError::NotUtf8 { .. })));
        let standby = Server { standby: true, ..server() };
        assert!(matches!(standby.check(), Err(MigrateError::Standby)));
    }
}
