//! The answer to one question.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::proto::op::{Message, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::HINFO;
use hickory_resolver::proto::rr::{DNSClass, RData, Record, RecordType};
use ipnet::IpNet;
use sandpiper_policy::{Name, Pin, Policy, Resolution, Rule};
use tracing::{debug, warn};

use super::Forwarder;
use super::message::{Extended, Question, explain};
use crate::denials::{Seen, Wanted};
use crate::pin::{self, Pinned};
use crate::upstream::{Found, address};

/// Addresses that are taken from an answer: each is pinned and remembered, and who answers may be a stranger.
const MOST_ADDRESSES: usize = 32;
/// Clients hold on to answers, and to connections that they open with them, for longer than they should.
const SHORTEST_PIN: Duration = Duration::from_secs(60);
/// And get them a little later than they are pinned.
const GRACE: Duration = Duration::from_secs(30);

impl Forwarder {
    pub(super) async fn answer(&self, question: &Question) -> Message {
        let query = &question.query;
        let kind = query.query_type();
        let transfer = matches!(kind, RecordType::AXFR | RecordType::IXFR);
        let name = query.name().to_ascii().trim_end_matches('.').parse::<Name>();
        let (Ok(name), DNSClass::IN, false) = (name, query.query_class(), transfer) else {
            return question.failed(ResponseCode::Refused);
        };

        let policy = self.shared.policy();
        if is_of_protected_range(question, &policy) {
            return question.failed(ResponseCode::NXDomain);
        }
        let pins = match policy.resolve(&name) {
            Resolution::Refused(rule) => return self.refuse(question, &name, &rule),
            Resolution::Allowed { pins } => pins,
        };
        match kind {
            RecordType::ANY => return minimal(question),
            RecordType::HTTPS | RecordType::SVCB if names_matter(&policy, &pins) => return question.reply(),
            _ => {}
        }
        match self.shared.lookups.records(query.name().clone(), kind).await {
            Ok(Found::Records(records)) => self.give_records(question, &name, records).await,
            Ok(Found::Nothing { code, authority }) => {
                let mut reply = question.failed(code);
                reply.add_authorities(authority.map(|record| record.into_record_of_rdata()));
                reply
            }
            Err(error) => {
                debug!(%error, "a name was not resolved");
                let mut reply = question.failed(ResponseCode::ServFail);
                explain(&mut reply, Extended::NoReachableAuthority);
                reply
            }
        }
    }

    /// Answers with these records, or as much of them as the guest may know.
    async fn give_records(&self, question: &Question, name: &Name, mut records: Vec<Record>) -> Message {
        keep_relevant(&question.query, &mut records);
        match self.admit(name, &mut records).await {
            Admitted::All => {
                let mut reply = question.reply();
                reply.add_answers(records);
                reply
            }
            Admitted::Refused(rule) => self.refuse(question, name, &rule),
            Admitted::Nothing(rule) => {
                self.shared.denials.record(Seen::Dns, &Wanted::Name(name.clone()), None, &rule);
                let mut reply = question.reply();
                explain(&mut reply, Extended::Blocked);
                reply
            }
            Admitted::NotNow => question.failed(ResponseCode::ServFail),
        }
    }

    /// Takes protected addresses out of an answer and pins the others, by the policy that holds at this moment: it may have
    /// changed while the name was being resolved, and cannot while this goes on.
    async fn admit(&self, name: &Name, records: &mut Vec<Record>) -> Admitted {
        let mut memory = Arc::clone(&self.shared.memory).lock_owned().await;
        let policy = self.shared.policy();
        let wanted = match policy.resolve(name) {
            Resolution::Refused(rule) => return Admitted::Refused(rule),
            Resolution::Allowed { pins } => pins,
        };

        let protected = take_out_protected(&policy, records);
        take_out_excess(records);
        let told: Vec<_> = records.iter().filter_map(|record| Some((address(record)?, life(record)))).collect();
        if let (Some(net), true) = (protected, told.is_empty()) {
            return Admitted::Nothing(Rule::Protected(net));
        }

        let pins: Vec<_> = told
            .iter()
            .flat_map(|&(address, life)| {
                wanted.iter().map(move |pin| Pinned { tier: pin.tier, address, port: pin.port, life })
            })
            .collect();
        if pins.is_empty() {
            memory.remember(name, told.into_iter());
            return Admitted::All;
        }
        let name = name.clone();
        // With the lock, so that the policy cannot change before the pins hold, even if nobody waits for the answer any more.
        let remember = move || memory.remember(&name, told.into_iter());
        match pin::pin(Arc::clone(&self.shared.pins), pins, remember).await {
            Ok(()) => Admitted::All,
            Err(error) => {
                warn!(%error, "the firewall rejected the addresses of a name");
                Admitted::NotNow
            }
        }
    }

    fn refuse(&self, question: &Question, name: &Name, rule: &Rule) -> Message {
        self.shared.denials.record(Seen::Dns, &Wanted::Name(name.clone()), None, rule);
        let mut reply = question.failed(ResponseCode::NXDomain);
        explain(&mut reply, Extended::Blocked);
        reply
    }
}

/// Takes out what was not asked for: where a server says more, nobody would look at addresses among it.
pub(super) fn keep_relevant(query: &Query, records: &mut Vec<Record>) {
    records.retain(|record| {
        let kind = record.record_type();
        // One without data belongs into an update, and makes an answer unreadable.
        (kind == query.query_type() || kind == RecordType::CNAME) && !matches!(record.data, RData::Update0(_))
    });
    for record in records {
        if record.name == *query.name() {
            // Cached, perhaps, from a question in another case.
            record.name = query.name().clone();
        }
    }
}

/// Takes out what has clients connect to a protected address; returns the range of such a one.
pub(super) fn take_out_protected(policy: &Policy, records: &mut Vec<Record>) -> Option<IpNet> {
    let mut protected = None;
    records.retain(|record| {
        let net = points_at(record).into_iter().find_map(|address| protecting(policy, address));
        protected = net.or(protected);
        net.is_none()
    });
    protected
}

/// Takes out what an answer has of addresses beyond the first [`MOST_ADDRESSES`].
fn take_out_excess(records: &mut Vec<Record>) {
    let mut addresses = 0;
    records.retain(|record| {
        addresses += usize::from(address(record).is_some());
        address(record).is_none() || addresses <= MOST_ADDRESSES
    });
}

enum Admitted {
    /// All records that are left.
    All,
    /// All of them were taken out.
    Nothing(Rule),
    /// The name is not allowed any more.
    Refused(Rule),
    /// The firewall did not take the pins.
    NotNow,
}

/// Whether the name is an address of a network that nobody here speaks for. Public servers know nothing of it either.
fn is_of_protected_range(question: &Question, policy: &Policy) -> bool {
    question.query.name().parse_arpa_name().is_ok_and(|net| protecting(policy, net.addr()).is_some())
}

/// Whether anything in the policy could be dodged with addresses or keys that come with a service's record.
fn names_matter(policy: &Policy, pins: &[Pin]) -> bool {
    policy.denies_names() || !policy.internet() || !pins.is_empty()
}

/// RFC 8482: "any" is nothing that a client needs.
fn minimal(question: &Question) -> Message {
    let mut reply = question.reply();
    let data = RData::HINFO(HINFO::new("RFC8482".into(), String::new()));
    reply.add_answer(Record::from_rdata(question.query.name().clone(), 3600, data));
    reply
}

/// The protected range that an address is in.
fn protecting(policy: &Policy, address: IpAddr) -> Option<IpNet> {
    policy.protected().iter().find(|net| net.contains(&address)).copied()
}

/// The addresses that a record has clients connect to.
fn points_at(record: &Record) -> Vec<IpAddr> {
    use hickory_resolver::proto::rr::rdata::svcb::SvcParamValue;
    let service = match &record.data {
        RData::HTTPS(service) => &service.0,
        RData::SVCB(service) => service,
        _ => return address(record).into_iter().collect(),
    };
    let mut addresses = Vec::new();
    for (_, value) in &service.svc_params {
        match value {
            SvcParamValue::Ipv4Hint(hints) => addresses.extend(hints.0.iter().map(|hint| IpAddr::from(hint.0))),
            SvcParamValue::Ipv6Hint(hints) => addresses.extend(hints.0.iter().map(|hint| IpAddr::from(hint.0))),
            _ => {}
        }
    }
    addresses
}

/// How long a record's address is pinned.
fn life(record: &Record) -> Duration {
    Duration::from_secs(record.ttl.into()).max(SHORTEST_PIN) + GRACE
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::proto::rr::Name;
    use hickory_resolver::proto::rr::rdata::A;

    #[test]
    fn what_was_not_asked_for_and_what_has_no_data_is_left_out() {
        let name: Name = "a.example.test.".parse().unwrap();
        let address = Record::from_rdata(name.clone(), 60, RData::A(A::new(203, 0, 113, 7)));
        let mut records = vec![
            Record::update0(name.clone(), 60, RecordType::A),
            address.clone(),
            Record::update0(name.clone(), 60, RecordType::AAAA),
        ];

        keep_relevant(&Query::query(name, RecordType::A), &mut records);

        assert_eq!(records, [address]);
    }

    #[test]
    fn of_many_addresses_the_first_are_taken() {
        let name: Name = "a.example.test.".parse().unwrap();
        let address = |n| Record::from_rdata(name.clone(), 60, RData::A(A::new(203, 0, 113, n)));
        let mut records: Vec<Record> = (0..100).map(address).collect();

        take_out_excess(&mut records);

        assert_eq!(records, (0..32).map(address).collect::<Vec<_>>());
    }
}
