//! The sender's dealings with the cluster as a whole: the state of the link, and one producer after another.

use outbox_core::{Clock, Link, Millis, Outcome, Peer, Sink};
use rdkafka::types::RDKafkaErrorCode;

use super::{HURRY_MS, Sender, not_sent};
use crate::handshake;
use crate::inbox::Mail;
use crate::producer::Line;
use crate::scout::Ask;

/// Between two handshakes that look for a reason.
const HANDSHAKE_PAUSE_MS: u64 = 5_000;

/// How librdkafka begins when it has no token (OAUTHBEARER).
const NO_TOKEN: &str = "Failed to acquire SASL OAUTHBEARER token: ";
/// What is for good about that: the errors of RFC 6749 section 5.2, and in libcurl's words a certificate that is not
/// believed. All else, a gateway's own error too, means that whoever gives out tokens cannot be reached.
const NO_TOKEN_FOR_GOOD: [&str; 5] =
    ["\"invalid_", "\"unauthorized_client\"", "\"unsupported_grant_type\"", "SSL certificate", "SSL: "];

impl Sender {
    /// librdkafka spoke about the producer or its connections.
    pub(super) fn heard(&mut self, code: RDKafkaErrorCode, detail: String) {
        use RDKafkaErrorCode as Code;
        // A peer that hangs up on our handshake (it speaks no TLS, or dislikes our certificate) counts as a lost
        // connection or as a TLS error, depending on who is faster; only the text is the same.
        let handshake = code == Code::BrokerTransportFailure
            && ["SSL handshake failed", "SSL alert number"].iter().any(|part| detail.contains(part));
        let refused = |detail| Link::Refused { detail: format!("{detail}; look at kafka.properties and the login") };
        match code {
            Code::Fatal => self.end_by_fatal(&detail),
            Code::BrokerTransportFailure | Code::SSL if handshake || code == Code::SSL => {
                if !matches!(self.trouble, Some(Link::Refused { .. })) {
                    self.trouble = Some(refused(detail));
                }
                self.look();
            }
            Code::Authentication if token_may_come(&detail) => self.troubled(Link::Down { detail }),
            Code::Authentication | Code::SaslAuthenticationFailed | Code::ClusterAuthorizationFailed => {
                self.troubled(refused(detail));
            }
            _ if matches!(self.trouble, Some(Link::Refused { .. })) => {}
            // It only counts them; what was heard before says why.
            Code::AllBrokersDown if self.trouble.is_some() => self.ask(Ask::Check),
            _ => {
                if !self.up {
                    self.look();
                }
                self.troubled(Link::Down { detail });
            }
        }
    }

    /// Asks why, not too often. `looked` is the answer.
    fn look(&mut self) {
        let now = Clock.now();
        if self.looked_at.is_none_or(|at| now.since(at) > HANDSHAKE_PAUSE_MS) {
            self.looked_at = Some(now);
            handshake::look(&self.settings.config, self.generation, &self.inbox);
        }
    }

    /// A reason that was found says more than librdkafka does.
    pub(super) fn looked(&mut self, generation: u64, why: Option<String>) {
        if generation != self.generation || self.line.is_none() {
            return;
        }
        let found = why.map(|detail| Link::Refused { detail });
        if let Some(trouble) = found.or_else(|| self.trouble.clone()) {
            self.troubled(trouble);
        }
    }

    /// The scout has the last word on a link that is up: librdkafka also complains about one broker of many.
    fn troubled(&mut self, trouble: Link) {
        self.trouble = Some(trouble.clone());
        if self.up {
            self.ask(Ask::Check);
        } else {
            self.set_link(trouble);
        }
    }

    pub(super) fn checked(&mut self, answer: Result<(), String>) {
        match answer {
            Ok(()) => {
                if self.line.is_some() {
                    self.trouble = None;
                    self.set_link(Link::Up);
                }
            }
            Err(detail) => {
                let link = self.trouble.clone().unwrap_or(Link::Down { detail });
                self.set_link(link.clone());
                self.release_queues();
                match link {
                    // Certificates and secrets in files are read when a client is made.
                    Link::Refused { detail } if self.line.as_ref().is_some_and(Line::is_empty) => {
                        self.ruin(&detail, true);
                        self.ask(Ask::Renew);
                    }
                    Link::Refused { .. } => {}
                    // librdkafka says a thing once, and the answer may not have been had then.
                    _ => self.look(),
                }
            }
        }
    }

    fn set_link(&mut self, link: Link) {
        self.up = link.is_up();
        let changed = self.link.send_if_modified(|current| {
            let changed = *current != link;
            current.clone_from(&link);
            changed
        });
        if changed {
            self.observer.link(Sink::Kafka, link.is_up(), false);
        }
    }

    /// The producer can do nothing more; its rows' fate is unknown.
    pub(super) fn end_by_fatal(&mut self, text: &str) {
        let fatal = self.line.as_ref().and_then(Line::fatal);
        let refused = matches!(fatal, Some((RDKafkaErrorCode::ClusterAuthorizationFailed, _)));
        let detail = fatal.map_or_else(|| text.to_owned(), |(code, text)| format!("{text} ({code})"));
        self.ruin(&detail, refused);
    }

    /// Gives up the producer with all that it holds. The next one is made only when this one is dead.
    pub(super) fn ruin(&mut self, detail: &str, refused: bool) {
        let Some(line) = self.line.take() else {
            return;
        };
        let detail = detail.to_owned();
        self.set_link(if refused {
            Link::Refused { detail: detail.clone() }
        } else {
            Link::Down { detail: detail.clone() }
        });
        self.pipelined.write().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        for row in line.purge() {
            row.outgoing.ticket.answer(Outcome::Unknown { detail: detail.clone() });
        }
        self.release_queues();
        for topic in &mut self.topics {
            topic.gate.forget();
            topic.gate.stale = false;
        }
        line.destroy();
        self.reopen_at = Clock.now().plus(self.backoff.next_ms());
    }

    pub(super) fn reopen(&mut self, now: Millis) {
        self.generation += 1;
        self.settings.renew();
        match Line::open(&self.settings, self.generation, &self.inbox) {
            Ok(line) => {
                self.line = Some(line);
                self.observer.reconnected(Peer::Broker(Sink::Kafka));
                self.ask(Ask::Check);
            }
            Err(error) => {
                let detail = handshake::fault_of_files(&self.settings.config).unwrap_or_else(|| error.to_string());
                self.set_link(Link::Refused { detail });
                self.reopen_at = now.plus(self.backoff.next_ms());
            }
        }
    }

    /// Rows that wait for room never left.
    fn release_queues(&mut self) {
        for topic in std::mem::take(&mut self.waiting) {
            let gate = &mut self.topics[topic].gate;
            std::mem::take(&mut gate.queue).into_iter().for_each(not_sent);
        }
    }

    /// Waits for the reports of what librdkafka holds, at most `grace_ms`, and answers everything.
    pub(super) fn stop(mut self, grace_ms: u64) {
        self.inbox.close().rows.into_iter().for_each(not_sent);
        self.release_queues();
        let until = Clock.now().plus(grace_ms);
        if let Some(line) = self.line.take() {
            while !line.is_empty() && Clock.now() < until {
                line.hurry();
                // Nothing arrives in a closed inbox: this is only a pause between two looks.
                self.inbox.take(&mut Mail::default(), std::time::Duration::from_millis(HURRY_MS));
            }
            for row in line.purge() {
                let detail = format!("no delivery report within the {grace_ms} ms of grace before stopping");
                row.outgoing.ticket.answer(Outcome::Unknown { detail });
            }
            line.destroy();
        }
        self.set_link(Link::Down { detail: "stopped".to_owned() });
        self.ask(Ask::End);
    }
}

/// Whether a token is missing only for now.
fn token_may_come(detail: &str) -> bool {
    let why = detail.find(NO_TOKEN).map(|at| &detail[at..]);
    why.is_some_and(|why| !NO_TOKEN_FOR_GOOD.iter().any(|known| why.contains(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_whoever_gives_out_tokens_is_for_good() {
        let told = |why: &str| token_may_come(&format!("outbox-relay: {NO_TOKEN}{why}"));
        for why in ["Empty reply from server", "Could not resolve host: idp", "{\"error\":\"upstream\"}", "<html>503"] {
            assert!(told(why), "{why}");
        }
        let certificate = "SSL certificate problem: unable to get local issuer certificate";
        let name = "SSL: no alternative certificate subject name matches target host name 'idp'";
        for why in ["{\"error\":\"invalid_client\"}", "{\"error\": \"unauthorized_client\"}", certificate, name] {
            assert!(!told(why), "{why}");
        }
        assert!(!token_may_come("SASL authentication error: Invalid username or password"));
    }
}
