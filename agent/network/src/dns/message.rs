//! Queries as they come, and replies in their form.

use hickory_resolver::proto::op::{
    DEFAULT_MAX_PAYLOAD_LEN, Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode,
};
use hickory_resolver::proto::rr::rdata::opt::EdnsOption;
use hickory_resolver::proto::serialize::binary::{BinDecodable as _, BinDecoder};

/// What any client takes by UDP (RFC 1035, section 2.3.4).
pub(super) const SHORTEST_MAXIMUM: usize = 512;
/// The EDNS option of extended errors (RFC 8914).
const EXTENDED_ERROR: u16 = 15;

#[derive(Debug, Clone, Copy)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

pub(super) enum Received {
    Question(Question),
    /// A query that is answered at once: it is malformed, or nothing that is served here.
    Wrong(Message),
    /// No query at all. An answer could go on for ever between two that take each other's answers for queries.
    Noise,
}

/// A well-formed query for one name.
pub(super) struct Question {
    metadata: Metadata,
    edns: Option<Edns>,
    pub(super) query: Query,
}

/// Extended errors (RFC 8914, section 4), with what a person reads in the guest.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extended {
    Blocked,
    NoReachableAuthority,
}

impl Extended {
    fn option(self) -> EdnsOption {
        let (code, text): (u16, _) = match self {
            Self::Blocked => (15, "denied by the sandbox's network policy"),
            Self::NoReachableAuthority => (22, "the host's name servers do not answer"),
        };
        let mut data = code.to_be_bytes().to_vec();
        data.extend_from_slice(text.as_bytes());
        EdnsOption::Unknown(EXTENDED_ERROR, data)
    }
}

/// Reads what a client sent.
pub(super) fn read(bytes: &[u8]) -> Received {
    let Ok(Header { metadata, counts }) = Header::read(&mut BinDecoder::new(bytes)) else { return Received::Noise };
    if metadata.message_type != MessageType::Query {
        return Received::Noise;
    }
    let wrong = |code| Received::Wrong(Message::error_msg(metadata.id, metadata.op_code, code));
    if metadata.op_code != OpCode::Query {
        return wrong(ResponseCode::NotImp);
    }
    // Before the rest is read: a number of questions is no reason to make room for them.
    if counts.queries != 1 || counts.answers != 0 {
        return wrong(ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(bytes) else { return wrong(ResponseCode::FormErr) };
    let Some(query) = message.queries.pop() else { return wrong(ResponseCode::FormErr) };
    let question = Question { metadata, edns: message.edns, query };
    if question.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return Received::Wrong(question.failed(ResponseCode::BADVERS));
    }
    Received::Question(question)
}

impl Question {
    /// An answer without records so far.
    pub(super) fn reply(&self) -> Message {
        let mut reply = Message::response(self.metadata.id, OpCode::Query);
        reply.metadata.recursion_desired = self.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.metadata.checking_disabled = self.metadata.checking_disabled;
        // The very question, in its own case: clients may compare that.
        reply.add_query(self.query.clone());
        if let Some(edns) = &self.edns {
            let mut own = Edns::new();
            own.set_max_payload(DEFAULT_MAX_PAYLOAD_LEN).set_dnssec_ok(edns.flags().dnssec_ok);
            reply.set_edns(own);
        }
        reply
    }

    pub(super) fn failed(&self, code: ResponseCode) -> Message {
        let mut reply = self.reply();
        reply.metadata.response_code = code;
        reply
    }

    /// How long a reply may be. By UDP no longer than what passes any path unfragmented.
    pub(super) fn longest_reply(&self, transport: Transport) -> usize {
        match (transport, &self.edns) {
            (Transport::Tcp, _) => u16::MAX.into(),
            (Transport::Udp, None) => SHORTEST_MAXIMUM,
            (Transport::Udp, Some(edns)) => {
                usize::from(edns.max_payload().min(DEFAULT_MAX_PAYLOAD_LEN)).max(SHORTEST_MAXIMUM)
            }
        }
    }
}

/// Says more about the outcome, to those who can read it.
pub(super) fn explain(reply: &mut Message, extended: Extended) {
    if let Some(edns) = &mut reply.edns {
        edns.options_mut().insert(extended.option());
    }
}

/// A reply's bytes. One that is too long for its way is cut to nothing, which has the client ask again by TCP.
pub(super) fn write(reply: Message, longest: usize) -> Option<Vec<u8>> {
    let bytes = reply.to_vec().ok()?;
    if bytes.len() <= longest { Some(bytes) } else { reply.truncate().to_vec().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::proto::rr::{Name, RecordType};
    use proptest::prelude::*;

    fn query() -> Message {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii("aPi.Example.test.").unwrap(), RecordType::A));
        message
    }

    fn code_of(received: Received) -> ResponseCode {
        match received {
            Received::Wrong(reply) => reply.response_code,
            Received::Question(_) => ResponseCode::NoError,
            Received::Noise => panic!("not answered"),
        }
    }

    #[test]
    fn a_reply_repeats_the_question_in_its_own_case() {
        let Received::Question(question) = read(&query().to_vec().unwrap()) else { panic!("a good query") };
        assert_eq!(question.reply().queries[0].name().to_ascii(), "aPi.Example.test.");
    }

    #[test]
    fn wrong_queries_are_told_what_is_wrong_and_answers_get_none() {
        let mut two = query();
        two.add_query(two.queries[0].clone());
        assert_eq!(code_of(read(&two.to_vec().unwrap())), ResponseCode::FormErr);

        let mut notify = query();
        notify.metadata.op_code = OpCode::Notify;
        assert_eq!(code_of(read(&notify.to_vec().unwrap())), ResponseCode::NotImp);

        let mut newer = query();
        newer.set_edns(Edns::new().set_version(1).clone());
        assert_eq!(code_of(read(&newer.to_vec().unwrap())), ResponseCode::BADVERS);

        let bytes = query().to_vec().unwrap();
        assert_eq!(code_of(read(&bytes[..bytes.len() - 3])), ResponseCode::FormErr);

        assert!(matches!(read(&query().into_response().to_vec().unwrap()), Received::Noise));
        assert!(matches!(read(&bytes[..5]), Received::Noise));
    }

    #[test]
    fn a_client_gets_no_longer_reply_by_udp_than_it_takes() {
        for (payload, longest) in [(None, 512), (Some(100), 512), (Some(900), 900), (Some(65_000), 1232)] {
            let mut message = query();
            if let Some(payload) = payload {
                message.set_edns(Edns::new().set_max_payload(payload).clone());
            }
            let Received::Question(question) = read(&message.to_vec().unwrap()) else { panic!("a good query") };
            assert_eq!(question.longest_reply(Transport::Udp), longest);
        }
    }

    proptest! {
        #[test]
        fn garbage_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            read(&bytes);
        }

        #[test]
        fn a_damaged_query_is_survived(at in 0_usize..64, with in any::<u8>(), cut in 0_usize..64) {
            let mut message = query();
            message.set_edns(Edns::new());
            let mut bytes = message.to_vec().unwrap();
            let at = at % bytes.len();
            bytes[at] = with;
            bytes.truncate(bytes.len() - cut % bytes.len());
            if let Received::Question(question) = read(&bytes) {
                prop_assert!(write(question.reply(), 512).is_some());
            }
        }
    }
}
