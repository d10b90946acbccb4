//! One table of an application as the configuration describes it, its names checked. What the database has of it is
//! asked elsewhere (`inspect`).

use outbox_core::ColumnTemplate;

/// PostgreSQL cuts longer names, and then they name something else.
const NAME_BYTES_MAX: usize = 63;

/// A schema, table or column: quoted wherever it stands in a statement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Checks a name as the catalog has it: case counts, nothing is quoted.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn new(name: &str) -> Result<Self, String> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(format!("'{}' is no name: 1 to {NAME_BYTES_MAX} bytes", name.replace('\0', " ")));
        }
        Ok(Self(name.to_owned()))
    }

    /// As the catalog has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For a statement.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('"', "\"\""))
    }
}

/// Where it is noted that a row was dealt with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// In a column of the table, of type timestamptz. `add`: the relay's migration may make it.
    Column { name: Name, add: bool },
    /// In `outbox.source_row`: the table is only read.
    SideTable,
}

/// What becomes the message's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A JSON object of these columns.
    Object(Vec<Name>),
    /// Columns as they are: text, and bytes; at most one of the two may be set in a row.
    Columns { payload: Option<Name>, payload_bytes: Option<Name> },
}

/// A table whose rows become messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeTable {
    /// The source's name in `outbox.source_row`, metrics and logs.
    pub name: String,
    pub schema: Name,
    pub table: Name,
    pub id: Name,
    /// Rows are taken in the order of this column, then of their ids.
    pub order: Option<Name>,
    pub message_id: ColumnTemplate,
    pub topic: ColumnTemplate,
    pub ordering_key: Option<ColumnTemplate>,
    pub body: Body,
    pub content_type: String,
    pub headers: Option<Name>,
    pub mark: Mark,
    /// Rows of one batch.
    pub batch_rows: u32,
}

impl IntakeTable {
    /// `"schema"."table"`
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", self.schema.quoted(), self.table.quoted())
    }

    /// The columns whose values become the message, each once.
    pub(crate) fn content_columns(&self) -> Vec<Name> {
        let templates = [Some(&self.message_id), Some(&self.topic), self.ordering_key.as_ref()];
        let named = templates.into_iter().flatten().flat_map(ColumnTemplate::columns).map(|name| Name(name.to_owned()));
        let body = match &self.body {
            Body::Object(columns) => columns.clone(),
            Body::Columns { payload, payload_bytes } => payload.iter().chain(payload_bytes).cloned().collect(),
        };
        let mut columns: Vec<Name> = named.chain(body).chain(self.headers.clone()).collect();
        columns.sort();
        columns.dedup();
        columns
    }

    /// Every column that is read.
    pub(crate) fn columns_read(&self) -> Vec<Name> {
        let mut columns = self.content_columns();
        columns.push(self.id.clone());
        columns.extend(self.order.clone());
        if let Mark::Column { name, .. } = &self.mark {
            columns.push(name.clone());
        }
        columns.sort();
        columns.dedup();
        columns
    }

    /// The columns of the order in which rows are taken.
    pub(crate) fn order_columns(&self) -> Vec<&Name> {
        self.order.iter().chain(Some(&self.id).filter(|id| self.order.as_ref() != Some(id))).collect()
    }
}
