//! PostgreSQL types that the client library has no Rust type for.

use std::error::Error;

use outbox_core::TxId;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// `xid8`: eight bytes, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xid8(pub(crate) u64);

impl From<TxId> for Xid8 {
    fn from(tx: TxId) -> Self {
        Self(tx.0)
    }
}

impl<'a> FromSql<'a> for Xid8 {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(u64::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::XID8
    }
}

impl ToSql for Xid8 {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::XID8
    }

    to_sql_checked!();
}

/// `pg_lsn`: a position in the WAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lsn(pub(crate) u64);

impl<'a> FromSql<'a> for Lsn {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(u64::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::PG_LSN
    }
}

/// `timestamptz` in microseconds since the Unix epoch; on the wire they count from the year 2000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamptz(pub(crate) i64);

const UNIX_TO_2000_US: i64 = 946_684_800_000_000;

impl<'a> FromSql<'a> for Timestamptz {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(UNIX_TO_2000_US)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// The bytes of a `text` or `bytea` value, as they came.
pub(crate) struct RawBytes<'a>(pub(crate) &'a [u8]);

impl<'a> FromSql<'a> for RawBytes<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::TEXT | Type::BYTEA | Type::VARCHAR)
    }
}
