//! DNS on its way through a sandbox's forwarder: the guest's query, and what the host's name servers answer.
//!
//! The first byte chooses UDP or TCP and how long the query is; the answer is the rest. Bit 6 puts the rest behind a header
//! and question of the query's own.
//!
//! A reply is one: it can be read, has the query's id and, if the query was understood, its very question; it is no longer
//! than its way allows; and no record of it leads to an address that the policy protects.
#![no_main]

use std::net::IpAddr;
use std::sync::OnceLock;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::svcb::{SVCB, SvcParamValue};
use hickory_proto::rr::{RData, Record};
use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::Input;
use sandpiper_network::fuzzing::reply;
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;

/// What passes any path unfragmented, and no client gets more of by UDP.
const LONGEST_UDP: usize = 1232;
/// The flags and counts of an answer with records in its first section.
const ANSWER: [u8; 10] = [0x81, 0x80, 0, 1, 0, 4, 0, 0, 0, 0];

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let shape = input.byte();
    let query = input.take(usize::from(shape & 0x3f) + 12);
    let answer = match query.split_at_checked(12) {
        Some((header, question)) if shape & 0x40 != 0 => [&header[..2], &ANSWER, question, input.0].concat(),
        _ => input.0.to_vec(),
    };
    let tcp = shape & 0x80 != 0;
    let Some(reply) = reply(query, &answer, policy(), tcp) else { return };

    assert!(reply.len() <= if tcp { u16::MAX.into() } else { LONGEST_UDP }, "{} bytes", reply.len());
    let reply = Message::from_vec(&reply).expect("a message");
    assert_eq!(
        (reply.metadata.message_type, &reply.metadata.id.to_be_bytes()[..]),
        (MessageType::Response, &query[..2])
    );
    if let (Ok(query), [question]) = (Message::from_vec(query), reply.queries.as_slice()) {
        assert_eq!(query.queries[0].name().to_ascii(), question.name().to_ascii());
        assert_eq!(query.queries[0].query_type(), question.query_type());
    }
    for address in reply.answers.iter().flat_map(addresses) {
        assert!(!policy().protected().iter().any(|net| net.contains(&address)), "{address} is protected");
    }
}

fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| {
        let policy = NetworkPolicy { allow_internet_access: true, ..NetworkPolicy::default() };
        Policy::compile(&policy, &Profiles::default(), &Platform::default()).expect("a policy")
    })
}

/// Where a record has clients connect to.
fn addresses(record: &Record) -> Vec<IpAddr> {
    let of_service = |service: &SVCB| {
        let hints = service.svc_params.iter().flat_map(|(_, value)| match value {
            SvcParamValue::Ipv4Hint(hints) => hints.0.iter().map(|hint| IpAddr::from(hint.0)).collect(),
            SvcParamValue::Ipv6Hint(hints) => hints.0.iter().map(|hint| IpAddr::from(hint.0)).collect(),
            _ => Vec::new(),
        });
        hints.collect()
    };
    match &record.data {
        RData::A(address) => vec![address.0.into()],
        RData::AAAA(address) => vec![address.0.into()],
        RData::HTTPS(service) => of_service(&service.0),
        RData::SVCB(service) => of_service(service),
        _ => Vec::new(),
    }
}
