//! What `run --drill` may be told.

use std::str::FromStr;

/// Faults on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drill {
    duplicate_percent: f64,
}

impl Drill {
    /// Of the confirmed rows, 0 to 1.
    pub fn duplicate_share(self) -> f64 {
        self.duplicate_percent / 100.0
    }
}

impl FromStr for Drill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, share) = text.split_once('=').ok_or("write it as duplicate=1%")?;
        if name != "duplicate" {
            return Err(format!("{name:?} is no drill; the only one is duplicate"));
        }
        let percent = share.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self { duplicate_percent: percent }),
            _ => Err("the share must be above 0% and at most 100%, as in duplicate=1%".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        for (text, share) in [("duplicate=1%", 0.01), ("duplicate=100%", 1.0), ("duplicate=0.5%", 0.005)] {
            assert_eq!(text.parse::<Drill>().map(Drill::duplicate_share), Ok(share));
        }
        for text in [
            "",
            "duplicate",
            "duplicate=1",
            "duplicate=0%",
            "duplicate=101%",
            "duplicate=-1%",
            "duplicate=NaN%",
            "duplicate=x%",
            "reorder=1%",
        ] {
            assert!(text.parse::<Drill>().is_err(), "{text}");
        }
    }
}
