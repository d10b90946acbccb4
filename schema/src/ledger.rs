//! The table `<schema>.migration`: which files a database has.
//!
//! Statements carry their types and stay unnamed, so that they work behind a transaction pooler.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::files::Schema;

/// What is entered for one applied file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub version: i32,
    /// `None` where another tool than this crate applied the file.
    pub checksum: Option<String>,
    /// The lowest schema version a program may be built for and still run.
    pub compatible_from: i32,
}

/// The entries of a schema in the order of their versions; none where it is not installed.
pub(crate) async fn entries(client: &impl GenericClient, schema: Schema) -> Result<Vec<Entry>, tokio_postgres::Error> {
    // Looked up in the catalog, which everybody may read: "not installed" must not look like "not permitted".
    let installed = client
        .query_typed_one(
            &format!(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c \
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                  WHERE n.nspname = '{schema}' AND c.relname = 'migration')"
            ),
            &[],
        )
        .await?
        .try_get::<_, bool>(0)?;
    if !installed {
        return Ok(Vec::new());
    }
    client
        .query_typed(
            &format!("SELECT version, checksum, compatible_from FROM {schema}.migration ORDER BY version"),
            &[],
        )
        .await?
        .iter()
        .map(|row| Ok(Entry { version: row.try_get(0)?, checksum: row.try_get(1)?, compatible_from: row.try_get(2)? }))
        .collect()
}

/// Completes an entry that a file made of itself.
pub(crate) async fn set_checksum(
    client: &impl GenericClient,
    schema: Schema,
    version: i32,
    checksum: &str,
) -> Result<(), tokio_postgres::Error> {
    client
        .execute_typed(
            &format!("UPDATE {schema}.migration SET checksum = $1 WHERE version = $2"),
            &[(&checksum, Type::TEXT), (&version, Type::INT4)],
        )
        .await
        .map(drop)
}
