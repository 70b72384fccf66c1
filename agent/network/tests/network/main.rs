//! The network of sandboxes, with packets and real sockets, in network namespaces that each test makes for itself.

mod firewall;
mod names;
mod slots;
