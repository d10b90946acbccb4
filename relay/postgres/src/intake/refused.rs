//! Refused rows are tried anew: their notes go, and where the table has a column for the mark, the mark too.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Transaction};

use super::ID_TYPE;
use super::table::{IntakeTable, Mark};

/// Rows in one transaction.
pub const RETRY_ROWS_MAX: i64 = 5_000;

const CHOSEN: &str = "SELECT r.row_id FROM outbox.source_row AS r \
                       WHERE r.source = $1 AND r.state = 'refused' AND ($2::text[] IS NULL OR r.row_id = ANY ($2)) \
                       ORDER BY r.row_id LIMIT $3 FOR UPDATE";
const FORGET: &str = "DELETE FROM outbox.source_row AS r WHERE r.source = $1 AND r.row_id = ANY ($2)";

/// Frees a batch of refused rows, those of `ids` or any, so that the relay's next look finds them. How many.
///
/// # Errors
/// What the database says; nothing was changed then.
pub async fn retry_refused(
    transaction: &Transaction<'_>,
    table: &IntakeTable,
    ids: Option<&[String]>,
) -> Result<usize, Error> {
    let ids = ids.map(<[String]>::to_vec);
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&table.name, Type::TEXT), (&ids, Type::TEXT_ARRAY), (&RETRY_ROWS_MAX, Type::INT8)];
    let rows = transaction.query_typed(CHOSEN, &parameters).await?;
    let chosen: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if chosen.is_empty() {
        return Ok(0);
    }
    if let Mark::Column { name, .. } = &table.mark {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&table.quoted(), Type::TEXT), (&table.id.as_str(), Type::TEXT)];
        let rows = transaction.query_typed(ID_TYPE, &parameters).await?;
        if let Some(row) = rows.first() {
            let id_type: String = row.try_get("name")?;
            let unmark = format!(
                "UPDATE {} AS t SET {} = NULL WHERE t.{} = ANY (ARRAY(SELECT unnest($1)::{id_type}))",
                table.quoted(),
                name.quoted(),
                table.id.quoted()
            );
            transaction.execute_typed(&unmark, &[(&chosen, Type::TEXT_ARRAY)]).await?;
        }
    }
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&table.name, Type::TEXT), (&chosen, Type::TEXT_ARRAY)];
    transaction.execute_typed(FORGET, &parameters).await?;
    Ok(chosen.len())
}
