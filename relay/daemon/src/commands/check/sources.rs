//! The tables of `[[source]]`: whether they are as the configuration says, and what this login may do with them.

use outbox_postgres::{IntakeFaultKind, inspect_intake};
use tokio_postgres::Client;

use super::finding::{
    Finding, Kind, REWRITE_RULE, ROW_SECURITY, SOURCE, SOURCE_INDEX, SOURCE_MARK_MISSING, SOURCE_PRIVILEGES,
    SOURCE_TABLE, UPDATE_TRIGGER,
};
use crate::config::SourceTable;
use crate::database::answered;
use crate::exit::Outcome;

/// One finding for each thing that is wrong, or one that all is well.
pub async fn look(client: &Client, tables: &[SourceTable]) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    for source in tables {
        let name = &source.intake.name;
        let faults = answered("cannot look at a source", inspect_intake(client, &source.table)).await?;
        if faults.is_empty() {
            findings.push(SOURCE.found(format!("{name}: {} is as it must be", source.table.quoted())));
        }
        for fault in faults {
            let mut finding = kind(fault.kind).found(format!("{name}: {}", fault.detail));
            finding.statements = fault.statements;
            findings.push(finding);
        }
    }
    Ok(findings)
}

const fn kind(fault: IntakeFaultKind) -> Kind {
    match fault {
        IntakeFaultKind::Table => SOURCE_TABLE,
        IntakeFaultKind::MarkMissing => SOURCE_MARK_MISSING,
        IntakeFaultKind::Privileges => SOURCE_PRIVILEGES,
        IntakeFaultKind::RowSecurity => ROW_SECURITY,
        IntakeFaultKind::Rule => REWRITE_RULE,
        IntakeFaultKind::Trigger => UPDATE_TRIGGER,
        IntakeFaultKind::Index => SOURCE_INDEX,
    }
}
