//! What `run --drill` may be told.

use std::str::FromStr;

use outbox_core::DrillShares;

const SPELLING: &str = "write it as duplicate=1% or reorder=1%";

/// Faults on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drill {
    kind: Kind,
    percent: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Duplicate,
    Reorder,
}

/// All that was asked for; of one kind the last.
pub fn shares(drills: &[Drill]) -> DrillShares {
    let mut shares = DrillShares::default();
    for drill in drills {
        let share = match drill.kind {
            Kind::Duplicate => &mut shares.duplicate,
            Kind::Reorder => &mut shares.reorder,
        };
        *share = drill.percent / 100.0;
    }
    shares
}

impl FromStr for Drill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, share) = text.split_once('=').ok_or(SPELLING)?;
        let kind = match name {
            "duplicate" => Kind::Duplicate,
            "reorder" => Kind::Reorder,
            _ => return Err(format!("{name:?} is no drill; {SPELLING}")),
        };
        let percent = share.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self { kind, percent }),
            _ => Err(format!("the share must be above 0% and at most 100%, as in {name}=1%")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        let parsed = |texts: &[&str]| -> DrillShares {
            shares(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Drill>>())
        };
        for (text, share) in [("duplicate=1%", 0.01), ("duplicate=100%", 1.0), ("duplicate=0.5%", 0.005)] {
            assert_eq!(parsed(&[text]), DrillShares { duplicate: share, reorder: 0.0 });
        }
        let both = parsed(&["duplicate=1%", "reorder=50%"]);
        assert_eq!(both, DrillShares { duplicate: 0.01, reorder: 0.5 });
        for text in [
            "",
            "duplicate",
            "duplicate=1",
            "duplicate=0%",
            "duplicate=101%",
            "duplicate=-1%",
            "duplicate=NaN%",
            "duplicate=x%",
            "reorder",
            "swap=1%",
        ] {
            assert!(text.parse::<Drill>().is_err(), "{text}");
        }
    }
}
