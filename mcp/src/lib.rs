//! Sandboxes as tools of an agent: a server of the Model Context Protocol (MCP), whatever carries its messages.
//!
//! ```text
//!  agent ──▶ Server        one per MCP session: names, schemas and results of the tools
//!             ├──▶ tools   one file per kind of tool
//!             └──▶ Conversation   the session's sandboxes: made on first use, woken when they are needed
//!                   └──▶ sandpiper-client   control plane and data plane, with the caller's own key
//! ```
//!
//! The command line serves one session on its standard input and output, the API many over HTTP. Nothing here may do more
//! than the key that the calls are made with: it is the API that decides.
//!
//! What a sandbox sends is data for a model to read, never part of the protocol: it is cut to a length, said to be cut, and
//! made text. A sandbox is not kept alive by the server: it pauses at its deadline, which every call moves out, and the next
//! call wakes it.

mod conversation;
mod server;
mod text;
mod tools;

pub use conversation::Settings;
pub use server::{Caller, Server};
