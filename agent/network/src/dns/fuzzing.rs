//! What the fuzz targets reach (`tests/fuzz`): the forwarder without its sockets, its name servers and its firewall.

use hickory_resolver::proto::op::Message;
use sandpiper_policy::Policy;

use super::answer::{keep_relevant, take_out_protected};
use super::message::{Received, SHORTEST_MAXIMUM, Transport, read, write};

/// What a client gets for its query if the host's name servers answer with `upstream`; by TCP, if `tcp`, else by UDP.
pub fn reply(query: &[u8], upstream: &[u8], policy: &Policy, tcp: bool) -> Option<Vec<u8>> {
    let transport = if tcp { Transport::Tcp } else { Transport::Udp };
    match read(query) {
        Received::Question(question) => {
            let mut reply = question.reply();
            if let Ok(answer) = Message::from_vec(upstream) {
                let mut records = answer.answers;
                keep_relevant(&question.query, &mut records);
                take_out_protected(policy, &mut records);
                reply.add_answers(records);
            }
            write(reply, question.longest_reply(transport))
        }
        Received::Wrong(reply) => write(reply, SHORTEST_MAXIMUM),
        Received::Noise => None,
    }
}
