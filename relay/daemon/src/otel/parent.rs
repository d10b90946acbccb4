//! The span that a row's `traceparent` names, as W3C's Trace Context writes it.

use outbox_core::{HeaderValue, Headers};

/// W3C's bound for what must be carried on; a longer one is left out.
const STATE_BYTES_MAX: usize = 512;

/// A sampled span of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    /// The row's `tracestate`; empty where it has none.
    pub(super) state: String,
}

impl Parent {
    /// `None` where the row has no `traceparent`, one that is malformed, or one that is not sampled.
    pub(super) fn of(headers: &Headers) -> Option<Self> {
        let Some(HeaderValue::Text(text)) = headers.get("traceparent") else { return None };
        let (trace_id, span_id) = sampled(text)?;
        let state = match headers.get("tracestate") {
            Some(HeaderValue::Text(state)) if state.len() <= STATE_BYTES_MAX => state.clone(),
            _ => String::new(),
        };
        Some(Self { trace_id, span_id, state })
    }
}

/// `version-trace-span-flags`; a version that is not known yet may have more behind another dash.
fn sampled(text: &str) -> Option<([u8; 16], [u8; 8])> {
    let mut parts = text.split('-');
    let [version] = hex(parts.next()?)?;
    let (trace_id, span_id) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let [flags] = hex(parts.next()?)?;
    let known = version != 0xff && (version > 0 || parts.next().is_none());
    let is_sampled = flags & 1 == 1;
    (known && is_sampled && trace_id != [0; 16] && span_id != [0; 8]).then_some((trace_id, span_id))
}

/// Exactly so many bytes, in small letters.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn of(traceparent: HeaderValue, tracestate: Option<&str>) -> Option<Parent> {
        let state = tracestate.map(|state| ("tracestate".to_owned(), HeaderValue::Text(state.to_owned())));
        Parent::of(&Headers([("traceparent".to_owned(), traceparent)].into_iter().chain(state).collect()))
    }

    fn of_text(traceparent: &str) -> Option<Parent> {
        of(HeaderValue::Text(traceparent.to_owned()), None)
    }

    #[test]
    fn a_sampled_traceparent_names_its_span() {
        let parent = of(HeaderValue::Text(format!("00-{TRACE}-{SPAN}-01")), Some("vendor=1")).unwrap();
        assert_eq!(parent.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!(parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert_eq!(parent.state, "vendor=1");
        // Other flags, and versions to come.
        for other in [format!("00-{TRACE}-{SPAN}-03"), format!("cc-{TRACE}-{SPAN}-01-more")] {
            assert_eq!(of_text(&other).unwrap().trace_id, parent.trace_id, "{other}");
        }
        let long = "x".repeat(STATE_BYTES_MAX + 1);
        assert_eq!(of(HeaderValue::Text(format!("00-{TRACE}-{SPAN}-01")), Some(&long)).unwrap().state, "");
    }

    #[test]
    fn what_is_not_sampled_or_malformed_names_none() {
        let (zeros, short) = ("0".repeat(32), &TRACE[1..]);
        for wrong in [
            format!("00-{TRACE}-{SPAN}-00"),
            format!("00-{TRACE}-{SPAN}-02"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{short}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            "é".repeat(28),
            String::new(),
        ] {
            assert_eq!(of_text(&wrong), None, "{wrong}");
        }
        assert_eq!(of(HeaderValue::Number("1".to_owned()), None), None);
        assert_eq!(Parent::of(&Headers::default()), None);
    }
}
